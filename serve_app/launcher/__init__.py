"""The launcher: checks a deployment, starts Ray and Serve below itself, watches them, and leaves nothing behind.

__main__ → deploy_file (the YAML) → ports → preflight (a process of its own: model, memory) → supervisor → cluster
(a child process: Ray and `serve run`). The launcher's own process never imports ray or torch.
"""
