"""Static batching with packed rows (FasterTransformer, EffectiveTransformer): as static, but only live rows cost.

Admission, reservation, shortage and starvation: as static. A finished member keeps its slots to the end of the batch.
Composition: the same steps without padding: prompts are packed one after the other, and finished members have no row.
"""

from engine.scheduling.policies.static import Static


class PackedStatic(Static):
    pads = False
