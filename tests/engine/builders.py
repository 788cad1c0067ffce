"""Builds an EngineCore around a runner without tensors."""

from collections.abc import Callable

from engine.core import EngineCore
from engine.kv_cache.manager import KVCacheManager
from engine.observer import StepObserver
from engine.scheduling.base import Scheduler
from engine.scheduling.policies import policy_class
from engine.scheduling.policy import CPU_LIMITS
from engine.text.token_bytes import ByteRule, WholeTexts
from tests.helpers import HashRunner, ManualClock


class LetterTokenizer:
    """A stand-in for engine.text.tokenizer.Tokenizer: token i is one letter; nothing special, nothing split."""

    byte_rule = ByteRule("byte_level")
    special_token_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.whole_texts = WholeTexts(self.token_bytes, self.special_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([97 + token_id % 26])


def build_core(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 128,
    max_num_waiting: int = 100,
    vocab_size: int = 1000,
    eos_token_ids: frozenset[int] = frozenset(),
    runner: HashRunner | None = None,
    prefix_caching: bool = True,
    policy: str = "chunked",
    overlap: bool = False,
    observer: StepObserver | None = None,
    clock: Callable[[], float] | None = None,
    **parameters: object,
) -> tuple[EngineCore, HashRunner]:
    kind = policy_class(policy)
    clock = clock or ManualClock()
    scheduler = Scheduler(
        kind(kind.Parameters.model_validate(parameters), CPU_LIMITS),
        KVCacheManager(num_blocks, block_size, prefix_caching=prefix_caching),
        max_model_len=max_model_len,
        clock=clock,
    )
    runner = runner or HashRunner(num_blocks, block_size)
    core = EngineCore(
        scheduler,
        runner,
        LetterTokenizer(),  # type: ignore[arg-type]
        model_name="letters",
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        max_num_waiting=max_num_waiting,
        clock=clock,
        overlap=overlap,
        check_every_step=True,
        observer=observer,
    )
    return core, runner
