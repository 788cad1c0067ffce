"""The launcher: checks a deployment, starts Ray and Serve below itself, watches them, and leaves nothing behind.

__main__ → deploy_file (the YAML) → ports → supervisor → preflight (a process of its own: model, memory), and beside it
cluster (a child process: Ray, and `serve run` once the preflight is through). The launcher's own process never imports
ray or torch.
"""
