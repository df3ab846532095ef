"""Training steps and documents per second on a GPU, for three shapes of network.

    python benchmarks/gpu_training.py          # where there is no CUDA device, it says so
    python benchmarks/gpu_training.py --processor --steps 3 --shape MiniLM

MiniLM, mpnet-base and a decoder of 0.6 billion weights (Qwen3's), with random weights, which take
as long as trained ones. Steps: NLI triplets of at most 64 tokens, one positive and one negative,
nested loss, AdamW. Documents: the abstracts of SciFact, at most 512 tokens. The share of the peak
counts the matrix products of the layers on real tokens, three times in training (forward, and
backward by inputs and by weights); the peak is that of large matrix products in bf16. Each shape is
a process of its own. The first steps are left out: compiled layers are made in them.

What is not done beside what is: TF32 (float32 sums of products of 10 bits), and layers compiled by
torch.compile, for MiniLM unless named.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from encoding import scifact
from fresh import answer, measure
from peaks import matmul
from record import DATA, record, spread
from train_speed import Watch, configure

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniLM": (
        "BertConfig",
        {
            "vocab_size": 30522,
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        },
    ),
    "mpnet-base": ("MPNetConfig", {"vocab_size": 30527, "pad_token_id": 0}),
    "0.6B decoder": (
        "Qwen3Config",
        {
            "vocab_size": 151936,
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "pad_token_id": 0,
        },
    ),
}
TF32, COMPILED = "fp32, TF32", "bf16, compiled"
ARITHMETIC = ("bf16", COMPILED, "fp32", TF32)
WARM_UP = 12  # steps before the clock starts: for each new width memory is taken and kernels chosen

DOCUMENTS = "documents, bf16"


@contextmanager
def arithmetic(name: str) -> Iterator[None]:
    """Train that way: what of it is no setting is put in place."""
    import torch

    from searchengine.trainer.training import preparation

    before, prepare = torch.get_float32_matmul_precision(), preparation._prepare_network

    def compiled(network: Any, config: Any) -> None:
        prepare(network, config)
        network.compile(dynamic=True)

    try:
        if name == TF32:
            torch.set_float32_matmul_precision("high")
        if name == COMPILED:
            preparation._prepare_network = compiled
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        preparation._prepare_network = prepare


def write_network(folder: Path, shape: str) -> Path:
    """A network of the shape with random weights, and the starter's tokenizer."""
    import torch
    import transformers

    from searchengine.trainer.encoder import Encoder

    kind, fields = SHAPES[shape]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**fields)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    Encoder.load("starter").model.tokenizer.save_pretrained(folder)
    return folder


def products(network: Any, lengths: Sequence[int]) -> float:
    """Floating-point operations of one forward pass over texts of this many tokens.

    2 a multiply-add: the weights of the layers' matrices for each token, and attention's two
    products for each pair of tokens, half of them in a decoder.
    """
    import torch

    from searchengine.trainer.model.network import layer_list

    layers, config = layer_list(network), network.config
    linear = [m for m in layers.modules() if isinstance(m, torch.nn.Linear)]
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    seen = 0.5 if "Qwen3" in type(network).__name__ else 1.0
    squares = sum(length**2 for length in lengths)
    weights = sum(m.weight.numel() for m in linear)
    return 2.0 * (weights * sum(lengths) + seen * 2 * width * len(layers) * squares)


def steps_of(folder: Path, data: Path, batch: int, steps: int, name: str) -> Any:
    """Seconds of each step, their mean useful work, and memory."""
    import torch

    from searchengine.trainer.training.batches import BatchPlan
    from searchengine.trainer.training.examples import read_examples
    from searchengine.trainer.training.loop import Report, train

    watch = Watch()

    def report(line: Report) -> None:
        if line.loss is not None:
            watch.end(line.loss)

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as scratch, arithmetic(name):
        config = configure(data, Path(scratch), steps, batch, nested=True)
        updates, precision = steps + WARM_UP + 1, name.partition(",")[0]
        config = replace(
            config, base=str(folder), prefixes=(), max_steps=updates, precision=precision
        )
        encoder = train(config, report)
        plan = BatchPlan(config, read_examples(config))
    timed = range(WARM_UP, WARM_UP + steps)
    rows = [row for step in timed for taken in plan.at(step) for row in taken]
    texts = [text for row in rows for text in (row.anchor, row.positive, *row.negatives)]
    lengths = [min(len(ids), config.max_tokens) for ids in encoder._tokens(texts)]
    ends = watch.ends[WARM_UP - 1 : WARM_UP + steps]
    found = {
        "seconds": [after - before for before, after in itertools.pairwise(ends)],
        "flop": 3 * products(encoder.module.transformer, lengths) / steps,
        "loss": watch.losses[-1],
    }
    if torch.cuda.is_available():
        found["gpu_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return found


def documents_of(folder: Path, data: Path, documents: int, device: str) -> Any:
    """Seconds of three encodings of the documents, and their useful work."""
    from searchengine.trainer.encoder import Encoder

    encoder = Encoder.load(folder, runtime="torch", precision="bf16", device=device)
    texts = scifact(data, documents)
    encoder.encode(texts[:64])
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        encoder.encode(texts)
        seconds.append(time.perf_counter() - start)
    lengths = [len(ids) for ids in encoder._tokens(texts)]
    return {"seconds": seconds, "flop": products(encoder.module.transformer, lengths)}


def rates(found: Any, count: int, peak: float) -> dict[str, Any]:
    """What is done per second, and the share of the peak."""
    middle = spread([count / seconds for seconds in found.pop("seconds")])
    share = found.pop("flop") / count * middle["median"] / peak
    return {"per second": middle, "share of bf16 peak": round(share, 3)} | found


@click.command()
@DATA
@click.option("--shape", "shapes", default=[*SHAPES], multiple=True, type=click.Choice([*SHAPES]))
@click.option("--batch", default=128, show_default=True, help="Triplets of a step.")
@click.option("--steps", default=20, show_default=True, help="Timed steps.")
@click.option("--documents", default=0, help="Of SciFact; 0 for all 5,183.")
@click.option("--arithmetic", "names", multiple=True, type=click.Choice(ARITHMETIC))
@click.option("--processor", is_flag=True, help="Measure here, without a GPU, to try it.")
@click.option("--child", is_flag=True, hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(
    data: Path,
    shapes: Sequence[str],
    batch: int,
    steps: int,
    documents: int,
    names: Sequence[str],
    processor: bool,
    child: bool,
    folder: Path,
) -> None:
    """Train and encode with each shape."""
    import torch

    device = "cpu" if processor else "cuda"
    if child:
        found = {f"steps, {name}": steps_of(folder, data, batch, steps, name) for name in names}
        answer(found | {DOCUMENTS: documents_of(folder, data, documents, device)})
        return
    if not processor and not torch.cuda.is_available():
        click.echo("There is no CUDA device here: nothing was measured.")
        return
    peak = matmul(device)[0]()["bf16"][0]
    figures: dict[str, Any] = {"bf16 peak, FLOP/s": peak}
    if not processor:
        figures["device"] = torch.cuda.get_device_name()
    count = len(scifact(data, documents))
    for shape in shapes:
        told: list[object] = ["--data", data, "--batch", batch, "--steps", steps]
        told += ["--documents", documents, *(["--processor"] if processor else [])]
        for name in names or [n for n in ARITHMETIC if n != COMPILED or shape == "MiniLM"]:
            told += ["--arithmetic", name]
        with tempfile.TemporaryDirectory() as scratch:
            write_network(Path(scratch), shape)
            done = measure(__file__, *told, "--folder", scratch)
        if done is None:
            figures[shape] = {"out of memory": True}
            continue
        figures[shape] = {
            name: rates(found, count if name == DOCUMENTS else 1, peak)
            for name, found in done.items()
        }
        click.echo(f"{shape}: {figures[shape]}")
        record("gpu_training", figures)


if __name__ == "__main__":
    main()
