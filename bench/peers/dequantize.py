"""A .gguf file as a folder of float16 safetensors, for a peer that does not read .gguf; made by transformers."""

import argparse
from pathlib import Path

import torch

from bench.peers.protocol import take_stdout
from bench.peers.transformers_static import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    args = parser.parse_args()
    take_stdout()
    unfinished = args.out.with_name(args.out.name + ".part")
    load_model(args.model, torch.float16).save_pretrained(unfinished)
    unfinished.rename(args.out)


if __name__ == "__main__":
    main()
