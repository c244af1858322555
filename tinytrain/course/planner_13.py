"""Notebook 13's planner with sliders: the planned memory of one process, drawn by kind."""

from matplotlib.figure import Figure

from tinytrain.model import PRESETS
from tinytrain.watch.planner import GiB, memory_of

COLOURS = {
    "weights": "#0072B2",
    "gradients": "#56B4E9",
    "moments": "#009E73",
    "casts": "#999999",
    "activations": "#E69F00",
    "logits": "#D55E00",
    "temporary": "#CC79A7",
}


def draw_memory(model: str, rows: int, precision: str, recompute: str, loss_chunk: str, processes: int) -> Figure:
    """The planned memory of one process, by kind, for ``rows`` rows at a time; sharded if there are many processes."""
    config = PRESETS[model]
    memory = memory_of(
        config,
        micro_batch_size=rows,
        precision=precision,
        recompute=recompute == "yes",
        loss_chunk=1024 if loss_chunk == "yes" else None,
        shards=processes,
    )
    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    ax = figure.subplots()
    left = 0.0
    for kind, size in vars(memory).items():
        if size:
            ax.barh([0], [size / GiB], left=left, color=COLOURS[kind], label=f"{kind} {size / GiB:.3g}")
            left += size / GiB
    limits = {limit: name for limit, name in ((24, "24 GiB"), (80, "80 GiB"), (131, "H200")) if limit < 1.7 * left}
    for limit, name in limits.items():
        ax.axvline(limit, color="black", linestyle=":", linewidth=1)
        ax.annotate(f" {name}", (limit, -0.52), fontsize=8, annotation_clip=False, va="bottom")
    right = 1.1 * max(left, *limits, 0)
    ax.set(yticks=[], xlabel="GiB in each process, at the fullest moment", xlim=(0, right), ylim=(-0.55, 0.45))
    estimate = ", an estimate" if processes > 1 else ""
    ax.set_title(f"{model}, {rows} rows of {config.max_positions}: {left:.3g} GiB{estimate}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
