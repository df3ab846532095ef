"""Which arithmetic the network runs in."""

from enum import StrEnum


class Precision(StrEnum):
    """The arithmetic of the transformer; pooling and head are always float32."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
