"""Which arithmetic the network runs in."""

from enum import StrEnum


class Precision(StrEnum):
    """The arithmetic of the transformer; pooling and head are always float32.

    FP16 is for CUDA. INT8 is for inference by OpenVINO: matrices are multiplied in 8 bits, scaled
    on sample texts; what is not a matrix product stays as it is.
    """

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


# What an encoder is trained in.
TRAINING = (Precision.AUTO, Precision.FP32, Precision.BF16)
