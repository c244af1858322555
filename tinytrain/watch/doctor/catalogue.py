"""What the doctor says: for each finding its stage, what is seen, the likely cause and what to look at next.

The checks measure and give a name; the words stand here, in one place. A check may replace a part of them where its
numbers tell more.
"""

from dataclasses import dataclass

PREFLIGHT = "run preflight: mask, labels, decay groups and gradients of each parameter"


@dataclass(frozen=True)
class Words:
    """The parts of a finding that are the same in every run."""

    stage: str
    """one of ``finding.STAGES``"""
    symptom: str
    cause: str
    checks: tuple[str, ...]


HIGH_LR = (
    "halve max_lr until the climb is gone, then compare: 1e-4, 3e-4, 1e-3 for a model of usual size",
    "is the gradient clipped, and at which norm?",
    "does float32 behave the same?",
    "look at the data there",
)
CUT_GRAPH = (
    "print the gradient's norm of each parameter",
    "look for clamps, where, detach and no_grad on the way from the weights to the loss",
)

CATALOGUE = {
    "lr off its plan": Words(
        "input",
        "the learning rate is not the planned one",
        "the schedule is not the one of this config",
        (
            "print lr(step) for all steps of the run and lay it over the lr of the log",
            "is the schedule moved on once in each update, and not in each micro-batch or epoch?",
            "was its position saved and loaded with the model, or does it begin again after a resume?",
            "is the number of updates that it was told that of the run?",
        ),
    ),
    "padding is trained on": Words(
        "input",
        "there are more targets than positions that carry a token",
        "labels at padding are not -100, or the mask is the wrong way round; the loss is too low for it",
        ("print labels and attention_mask of one row", "set labels to -100 where the mask is 0"),
    ),
    "initial loss": Words(
        "input",
        "the first loss is far above that of a model that knows nothing",
        "first weights that are too large; or a loss that is a sum and not a mean over tokens",
        (
            "the standard deviation of embeddings and head at the start; 0.02 is usual",
            "residual outputs scaled by 1/sqrt(2 * layers)",
            PREFLIGHT,
        ),
    ),
    "gradients clipped away": Words(
        "input",
        "clipping leaves next to nothing of the gradient",
        "max_grad_norm is far below the norm",
        (
            "set max_grad_norm to 1",
            "in FP16: are the gradients unscaled before they are clipped?",
            "read the norm with a limit of 1e10 for a while",
        ),
    ),
    "loss scale collapses": Words(
        "event",
        "the loss scale falls again and again: gradients overflow FP16",
        "an activation or a gradient over 65,504, FP16's largest number",
        (
            "look at the largest activation and gradient of each module at that batch",
            "run norms, softmax and sums in float32",
            "train in BF16, and see whether it goes away",
        ),
    ),
    "loss scale soars": Words(
        "event",
        "the loss scale grows without end: there is no gradient that could overflow",
        "gradients are 0 or nearly so: something cuts the graph, saturates, or overflowed before",
        (
            *CUT_GRAPH,
            "run one batch in float32: is the norm 0 there, too?",
        ),
    ),
    "updates skipped": Words(
        "event",
        "batches in which no position is a target",
        "labels that are all ignored (-100): a file without answers, or a mask over the wrong part",
        (
            "print the labels of the first such batch, and count those that are not -100",
            "does the data set -100 at padding and prompts only?",
            "was a document cut so that only its ignored part is left?",
        ),
    ),
    "unstable in warmup": Words(
        "event",
        "the loss rises while the learning rate is still rising",
        "max_lr is too high: the loss turned at the rate where training broke, and that is the bound",
        HIGH_LR,
    ),
    "swings": Words(
        "event",
        "the loss swings up and down, or runs away",
        "the learning rate is too high, or the numbers are too narrow",
        HIGH_LR,
    ),
    "spike": Words(
        "event",
        "the gradient's norm jumps, and the loss with it",
        "a bad batch or another kind of text there; if it comes again, a learning rate that is too high",
        (
            "print the rows of that batch",
            "clip at a norm of 1, or lower where most updates are larger than that",
            "lower max_lr, or warm up for longer",
        ),
    ),
    "loss not finite": Words(
        "event",
        "the loss is NaN or infinite",
        "numbers that grew too large: the learning rate, or FP16",
        (
            "look at the batch: ids, labels, masks, numbers from files",
            "look at the learning rate and at the norm before it",
            "look at the loss scale; run the same batch in float32 or BF16",
            "hunt the first module whose output is not finite",
        ),
    ),
    "no gradient": Words(
        "event",
        "the gradient's norm is 0 or nearly so",
        "something cuts the graph, saturates, or every parameter is frozen; in FP16, gradients too small for it",
        CUT_GRAPH,
    ),
    "loss hardly moves": Words(
        "shape",
        "the loss is where it began",
        "a learning rate far too small, gradients clipped or cut off, or a decay as fast as the learning",
        (
            "is grad_norm above 0, and clip_factor not next to 0?",
            "try a learning rate 10 and 100 times as large",
            "are labels -100 (ignore_index) where they should not be?",
            f"lower weight_decay; {PREFLIGHT}",
        ),
    ),
    "loss stuck": Words(
        "shape",
        "the loss fell at first, and has not moved since",
        "the model learns how frequent tokens are and nothing more: labels that do not belong to their inputs, a mask "
        "that hides the past, a decay or learning rate far too large",
        (
            "decode one row of inputs and labels and read them side by side",
            "try a tenth of the learning rate, then weight_decay 0.1",
            PREFLIGHT,
            "if it is as good as such a model gets, this is no fault",
        ),
    ),
    "behind the other run": Words(
        "shape",
        "the loss lies above that of the run that it is compared with",
        "what differs between the two runs; if more than one thing does, nothing can be said",
        (
            "list what differs, and change one thing at a time",
            f"decay groups, initial scale, embeddings: {PREFLIGHT}",
            "repeat both with other seeds",
        ),
    ),
    "evaluation apart": Words(
        "eval",
        "evaluation is far above training before anything could be learnt by heart",
        "another kind of text, another tokenizer or another mode: dropout left on in evaluation",
        (
            "evaluate on rows of the training text: is that as far away?",
            "is the model in eval mode, and does each of its dropouts look at that?",
            "decode a row of the evaluation data",
        ),
    ),
    "overfitting": Words(
        "eval",
        "evaluation rises while training falls",
        "too little text for this model and this many updates",
        (
            "keep the weights of the lowest evaluation",
            "more and more varied data; does the data repeat a few rows?",
            "dropout and weight decay",
            "a smaller model, fewer updates",
        ),
    ),
    "too good to be true": Words(
        "eval",
        "the loss is lower than text allows, on text that was never seen",
        "the answer can be seen: a mask that lets the future through, labels that are not shifted, or evaluation rows "
        "that are in the training text",
        (
            PREFLIGHT,
            "do labels equal input_ids? Each must be the token after",
            "sample from the model: a leak writes rubbish",
            "search the evaluation text for rows of the training text",
        ),
    ),
    "memorising": Words(
        "eval",
        "the training loss goes towards 0",
        "few rows that come again and again are learnt by heart",
        (
            "count the rows that differ, and the epochs",
            "evaluate on held-out text",
            f"if no row came twice: {PREFLIGHT}",
        ),
    ),
    "slow: padding": Words(
        "cost",
        "much of each batch carries no token",
        "rows of mixed lengths, each padded to the longest of its batch",
        ("sort rows by length (bucketed), or pack several into one", "is one row far longer than the others?"),
    ),
    "slow: waiting for data": Words(
        "cost",
        "updates wait for their batches",
        "the data is read, decoded or tokenized while the device waits",
        ("time data[n] alone", "tokenize once and store the ids", "make batches in another process"),
    ),
    "throughput falls": Words(
        "cost",
        "each update takes longer than the one before",
        "something grows with every update: hooks, lists, a graph that is kept; or the device gets hot",
        (
            "does seconds_data grow, or seconds_step?",
            "count the hooks of the modules, and the length of whatever is collected",
            "temperature and clock of the device, other programs on it",
        ),
    ),
    "slow: exchange": Words(
        "cost",
        "processes spend much of each update on exchanging gradients",
        "too little work in each update for its exchange, a slow network, or one process that is slower",
        (
            "more rows in each update, or accumulation: one exchange for more work",
            "is each process as fast as the others alone?",
            "the bandwidth between them",
        ),
    ),
    "memory grows": Words(
        "cost",
        "the memory in use grows with every update",
        "something is kept: a loss or output without detach() or item(), with its graph",
        (
            "what is appended to a list in each update?",
            "log loss.item(), not loss",
            "does it stop without evaluation, without callbacks?",
        ),
    ),
    "memory near its limit": Words(
        "cost",
        "hardly any memory is left",
        "the batch, activations, or a copy that saving makes",
        (
            "smaller micro-batches with accumulation: the update stays the same",
            "activation checkpointing",
            "does the peak come with evaluation or with a checkpoint?",
        ),
    ),
}
"""Name of a finding: its words."""
