"""EngineConfig: everything one engine is told. The only module of engine/ that may read environment variables."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.scheduling.policies import parameters_class, policy_names

DeviceName = Literal["auto", "cuda", "cpu"]
DtypeName = Literal["auto", "float32", "float16", "bfloat16", "int8"]


def nearest(key: str, known: Iterable[str]) -> str:
    """A suffix for an error text: the known key that `key` was most likely meant to be, or the list of all."""
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"


class StrictModel(BaseModel):
    """A frozen section of the configuration; an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _suggest_nearest_key(cls, values: Any) -> Any:
        if isinstance(values, dict) and cls.model_config.get("extra") == "forbid":
            for key in values:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key '{key}': {nearest(str(key), cls.model_fields)}")
        return values


class SchedulerConfig(BaseModel):
    """`scheduler: {policy: …}` and exactly that policy's own parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)

    policy: str = "chunked"

    @model_validator(mode="before")
    @classmethod
    def _check_against_policy(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        policy = values.get("policy", "chunked")
        if policy not in policy_names():
            raise ValueError(f"policy: unknown policy '{policy}': {nearest(str(policy), policy_names())}")
        own = parameters_class(policy).model_fields
        for key in values:
            if key == "policy" or key in own:
                continue
            owners = [name for name in policy_names() if key in parameters_class(name).model_fields]
            if owners:
                raise ValueError(f"'{key}' is a parameter of policy {', '.join(owners)}, not of '{policy}'")
            raise ValueError(f"unknown key '{key}': {nearest(str(key), {'policy', *own})}")
        parameters_class(policy).model_validate({key: value for key, value in values.items() if key != "policy"})
        return values

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class KVCacheConfig(StrictModel):
    block_size: int | None = Field(None, gt=0, le=1024, description="tokens in a block; default: policy or device")
    capacity_tokens: int | None = Field(None, gt=0, description="tokens the pool holds; default: what memory allows")
    memory_fraction: float = Field(0.9, gt=0, le=1, description="of free memory, for weights, working memory and KV")
    prefix_caching: bool = True


class GrammarConfig(StrictModel):
    """Structured output: how large a schema, regular expression or grammar may be, and what is kept of it."""

    max_bytes: int = Field(65_536, gt=0, le=2**18, description="length of its text")
    max_depth: int = Field(64, gt=0, le=100, description="nesting of a JSON schema")
    compile_timeout_s: float = Field(5.0, gt=0, description="a request whose grammar takes longer is refused")
    cache_bytes: int = Field(64 * 2**20, ge=0, description="compiled grammars kept for later requests")


class EngineConfig(StrictModel):
    model: str = Field(min_length=1, description="demo, minilm, a Hugging Face id, a folder, a .gguf or random:<shape>")
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"
    max_model_len: int | None = Field(None, gt=1, description="context in tokens; default: the model's own")
    seed: int = Field(0, ge=0, lt=2**63, description="initialises random weights only; requests carry their own")
    scheduler: SchedulerConfig = SchedulerConfig()
    kv_cache: KVCacheConfig = KVCacheConfig()
    grammar: GrammarConfig = GrammarConfig()
    num_threads: int | None = Field(None, gt=0, description="CPU threads; default: the cores the process was given")
    max_num_waiting: int = Field(2048, gt=0, description="waiting requests before new ones are refused")
    step_timeout_s: float = Field(120.0, gt=0, description="a step that runs longer means a stuck engine")
    trust_remote_code: bool = False
    trace: Path | None = Field(None, description="new JSONL file for what every step computes; see engine/trace.py")


def cache_directory() -> Path:
    """Where downloads and converted copies live: $CONVEYOR_CACHE, else the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CONVEYOR_CACHE") or Path(base) / "conveyor")


def hugging_face_token() -> str | None:
    return os.environ.get("HF_TOKEN")


def prepare_process() -> None:
    """Settings of libraries that read them once, when they are loaded: call before torch is imported.

    OpenMP threads that spin at a barrier take the cores from whatever else runs, the processes that carry requests to
    the engine among them; threads that sleep at once are late for the next product. These spin for some 0.1 ms.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
