"""A .gguf file as a folder of float16 safetensors, for a peer that does not read .gguf; made by transformers."""

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.peers.protocol import take_stdout
from bench.peers.transformers_static import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    args = parser.parse_args()
    take_stdout()
    unfinished = args.out.with_name(args.out.name + ".part")
    plain(load_model(args.model, torch.float16)).save_pretrained(unfinished)
    unfinished.rename(args.out)


def plain(model: Any) -> Any:
    """The same weights in a model that does not know of its file: transformers saves no model read from a .gguf."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    again: Any = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    again.load_state_dict(model.state_dict())
    return again


if __name__ == "__main__":
    main()
