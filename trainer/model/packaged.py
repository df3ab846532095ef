"""The packaged model, described without torch, whose start takes longer than a small job.

What is stated here is what torch reads from the package (tests/trainer/test_packaged.py), and holds
for the files with this checksum alone: another release of the package is read by torch.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.model.layout import WEIGHTS
from searchengine.trainer.model.source import Source, Starter
from searchengine.trainer.model.tokens import Description, Tokenization

# The checksums of its files, by name, as JSON: their sha256.
FILES = "ef48a353b473d18ce459dca015db486295f5d544ea504186ac97586bfb7b6b10"
FINGERPRINTS = {
    Starter.PUBLISHED: "5c7676233b857c017bd2f63084110ff2f937906070a100cfc2023ba11f92d212",
    Starter.WIDENED: "f2e40e0b18b0457bc2fdbb42f0c6a298e2e81a0ac9031551a7741a51f0ae4368",
}
DIMS = {Starter.PUBLISHED: (384,), Starter.WIDENED: (768, 512, 256, 128, 64)}
LAYERS, HEADS, EPSILON = 6, 12, 1e-12
MAX_TOKENS, PAD_ID, SPECIAL_IDS = 256, 0, (100, 102, 0, 101, 103)
# Of the widened model. Mean lengths of its two pooled halves over SciFact abstracts: scaling each
# by the inverse gives them equal weight; CLS then gets a little less than the mean, for which the
# network was trained.
CLS_NORM, MEAN_NORM = 6.91, 2.23
CLS_WEIGHT = 0.75


@dataclass(frozen=True, slots=True)
class Packaged:
    """The packaged model, or its widened form.

    Attributes:
        widened: the pooling is CLS ⊕ mean, each half scaled, in place of the mean.
        fingerprint, description: as torch gives them.
    """

    folder: Path
    widened: bool
    fingerprint: str
    description: Description

    def weights(self) -> Mapping[str, NDArray[np.float32]]:
        """The tensors of the network, by name. Raises ModelError."""
        try:
            return load_file(self.folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{self.folder / WEIGHTS} cannot be read: {first_line(error)}"
            ) from error


def find_packaged(source: Source) -> Packaged | None:
    """The packaged model of a source; None for any other model, and for other files."""
    if source.starter is None or source.layers is not None or source.pairs:
        return None
    files = source.file_checksums()
    if hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() != FILES:
        return None
    state = Tokenizer.from_file(str(source.folder / "tokenizer.json")).to_str()
    dims = DIMS[source.starter]
    description = Description(
        dim=dims[0],
        layers=LAYERS,
        matryoshka_dims=dims,
        tokens=Tokenization(state, MAX_TOKENS, PAD_ID, SPECIAL_IDS, "right"),
    )
    widened = source.starter is Starter.WIDENED
    return Packaged(source.folder, widened, FINGERPRINTS[source.starter], description)
