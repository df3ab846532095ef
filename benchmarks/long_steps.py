"""Time and memory of a training step on long texts: attention in groups, adapters.

    python benchmarks/long_steps.py

One text of 512 to 4,096 tokens through the starter's network with 4,096 interpolated positions,
forward, backward and AdamW, dropout 0. Full attention written out (eager), torch's fused one
(sdpa) and shifted sparse attention with groups of a quarter and of an eighth of the text; all
weights trained, or adapters with embeddings and norms (LoRA+). For the time all kinds
of attention take turns in one process; for the memory each runs in a process of its own, and counts
what a step adds to what is resident before the first. Ten minutes on two cores.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any

import click
from fresh import answer, measure, peak_mb, resident_mb
from record import record, spread

LENGTHS = (512, 1024, 2048, 4096)
WINDOW = 4096
ATTENTIONS = ("eager", "sdpa", "groups of 1/4", "groups of 1/8")
TRAINED: dict[str, dict[str, Any]] = {
    "all weights": {},
    "LoRA+": {"adapter_rank": 8},
}


def choose(network: Any, attention: str, tokens: int) -> None:
    """Switch a network to one of ATTENTIONS."""
    from searchengine.trainer.training import longlora

    longlora.use_full_attention(network)
    if attention.startswith("groups"):
        longlora.use_groups(network, tokens // int(attention[-1]))
    else:
        network.set_attn_implementation(attention)


def step(tokens: int, trained: str, precision: str) -> tuple[Any, Any]:
    """The network, and a function that does one update."""
    import torch

    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.model.modules import Batch
    from searchengine.trainer.training.longlora import add_adapters, lengthened
    from searchengine.trainer.training.train_config import TrainConfig
    from searchengine.trainer.training.training_model import set_dropout

    torch.manual_seed(0)
    model = lengthened(Encoder.load("starter", runtime="torch", precision="fp32").model, WINDOW)
    module, network = model.module, model.module.transformer
    set_dropout(network, 0.0)
    if TRAINED[trained]:
        add_adapters(network, TrainConfig(train=["-"], out="-", **TRAINED[trained]))
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-6, fused=True)
    ids = torch.randint(1000, 20000, (1, tokens))
    batch, target = Batch(ids, torch.ones_like(ids)), torch.randn(module.dim)
    module.train()

    def update() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = -(module(batch) @ target).mean()
        loss.backward()
        optimizer.step()

    return network, update


def timed(tokens: int, trained: str, precision: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, by attention; the first round is not counted."""
    network, update = step(tokens, trained, precision)
    seconds: dict[str, list[float]] = {name: [] for name in ATTENTIONS}
    for number in range(rounds + 1):
        for name in ATTENTIONS:
            choose(network, name, tokens)
            start = time.perf_counter()
            update()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def memory(tokens: int, trained: str, precision: str, attention: str) -> float:
    """MB that two updates add at most."""
    network, update = step(tokens, trained, precision)
    choose(network, attention, tokens)
    before = resident_mb()
    update()
    update()
    return peak_mb() - before


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Timed steps of each kind.")
@click.option("--threads", default=0, help="Threads of torch [default: torch's own choice].")
@click.option("--precision", default="fp32,bf16", show_default=True, help="Precisions to measure.")
@click.option("--child", nargs=6, hidden=True)
def main(rounds: int, threads: int, precision: str, child: tuple[str, ...] | None) -> None:
    """Measure time and memory of training steps."""
    if child:
        import torch

        kind, tokens, trained, arithmetic, detail, count = child
        if int(count):
            torch.set_num_threads(int(count))
        if kind == "time":
            answer(timed(int(tokens), trained, arithmetic, int(detail)))
        else:
            answer(memory(int(tokens), trained, arithmetic, detail))
        return
    script, rows = str(Path(__file__)), []
    for arithmetic in precision.split(","):
        for tokens in LENGTHS:
            for trained in TRAINED:
                base = (tokens, trained, arithmetic)
                seconds = measure(script, "time", *base, rounds, threads)
                for name in ATTENTIONS:
                    peak = measure(script, "memory", *base, name, threads)
                    row = {
                        "precision": arithmetic,
                        "tokens": tokens,
                        "trained": trained,
                        "attention": name,
                        "seconds": spread(seconds[name]),
                        "of sdpa": median(seconds[name]) / median(seconds["sdpa"]),
                        "mb": peak,
                    }
                    rows.append(row)
                    click.echo(
                        f"{arithmetic} {tokens:5} {trained:12} {name:14} "
                        f"{1000 * row['seconds']['median']:7.0f} ms {row['of sdpa']:5.2f} of sdpa "
                        f"{'no memory' if peak is None else f'{peak:6.0f} MB'}"
                    )
    record("long steps", rows)


if __name__ == "__main__":
    main()
