"""FP32, BF16 and FP16 behind one face: autocast for the forward pass, a loss scale for FP16.

Weights, gradients and AdamW's moments stay in float32 in every mode; only the matrix products and what they pass on
are narrower (Micikevicius et al. 2018).
"""

import time
import warnings
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
INITIAL_SCALE = 2.0**16
MIN_SCALE = 1.0


class LossScaleError(RuntimeError):
    """The loss scale fell under its floor: gradients overflow however small the loss is made."""


class Precision:
    """How wide the numbers of a forward pass are: ``"fp32"``, ``"bf16"`` or ``"fp16"``.

    FP16 reaches from 6e-8 to 65,504 only, so small gradients would become 0. Its loss is multiplied by ``scale``
    before the backward pass and the gradients are divided by it afterwards. A step whose gradients overflow is
    skipped and halves the scale; ``growth_interval`` good steps in a row double it. Torch's own scaler has no floor:
    at scale 0 it stops skipping, and the weights become NaN. Here a scale under ``min_scale`` ends the run with
    ``LossScaleError`` before any weight is touched.

    The loss scaler is made for the model's device at the first step. On a CPU without hardware for the format, the
    first step warns, with the slowdown measured there and then.

    Raises ``ValueError`` for another mode, and for a model whose weights are not float32.
    """

    def __init__(
        self,
        mode: str = "fp32",
        *,
        init_scale: float = INITIAL_SCALE,
        growth_interval: int = 2000,
        min_scale: float = MIN_SCALE,
    ) -> None:
        if mode not in DTYPES:
            raise ValueError(f"precision {mode!r} is not one of {', '.join(DTYPES)}")
        if not 0 < min_scale <= init_scale:
            raise ValueError(f"min_scale={min_scale} and init_scale={init_scale} need 0 < min_scale <= init_scale")
        self.mode, self.dtype, self.min_scale = mode, DTYPES[mode], min_scale
        self._init_scale, self._growth_interval = init_scale, growth_interval
        self._scaler: torch.amp.GradScaler | None = None
        self._loaded: dict[str, Any] | None = None
        self._prepared: weakref.ref[nn.Module] | None = None

    def prepare(self, model: nn.Module, device: torch.device) -> None:
        """Check the model once, warn once where the format is slow, and make the scaler for ``device``."""
        if self._prepared is not None and self._prepared() is model:
            return
        check_float32(model)
        if device.type == "cpu" and self.mode != "fp32" and not cpu_supports(self.dtype):
            warn_of_slow_format(self.dtype)
        if self.mode == "fp16" and self._scaler is None:
            self._scaler = torch.amp.GradScaler(
                device.type, init_scale=self._init_scale, growth_interval=self._growth_interval
            )
            if self._loaded:
                self._scaler.load_state_dict(self._loaded)
        self._prepared = weakref.ref(model)

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context for a forward pass on ``device``."""
        if self.mode == "fp32":
            return nullcontext()
        return torch.autocast(device.type, dtype=self.dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call ``backward`` on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Divide the gradients by the scale, once per update and before clipping; returns the scale, shape ``[]``."""
        one = torch.ones((), device=optimizer.param_groups[0]["params"][0].device)
        if self._scaler is None:
            return one
        self._scaler.unscale_(optimizer)
        return self._scaler.scale(one)

    def check_scale(self, scale: float) -> None:
        """Raise ``LossScaleError`` if the scale of this update is under the floor."""
        if not scale >= self.min_scale:
            raise LossScaleError(
                f"the loss scale is {scale:.3g}, under its floor of {self.min_scale:.3g}, after one skipped update "
                f"after another. The gradients overflow FP16 whatever the scale: look at the largest activation and "
                f"gradient of each module, run norms and softmax in float32, or train in BF16. No weight was touched"
            )

    def update(self) -> None:
        """Adjust the scale after an update, made or skipped."""
        if self._scaler is not None:
            self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state, for a checkpoint; empty where no scale is used."""
        if self._scaler is not None:
            return self._scaler.state_dict()
        return dict(self._loaded or {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved scale. Raises ``ValueError`` if the state was saved in a mode that has another scaler."""
        if bool(state) != (self.mode == "fp16"):
            saved = "with a loss scale (FP16)" if state else "without a loss scale (FP32 or BF16)"
            raise ValueError(
                f"this state was saved {saved}, and precision is {self.mode}: resume in the same precision"
            )
        self._loaded = dict(state)
        if self._scaler is not None:
            self._scaler.load_state_dict(state)


def check_float32(model: nn.Module) -> None:
    """Raise ``ValueError`` naming the first trainable parameter that is in half precision."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"parameter {name} is {parameter.dtype}: keep weights in float32 (model.float()) and choose the "
                f"precision of the computation: TrainConfig(precision='bf16'), or Precision('bf16') for a step"
            )


def cpu_supports(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies matrices of ``dtype`` in hardware."""
    if dtype == torch.bfloat16:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return dtype == torch.float32 or torch.cpu._is_amx_fp16_supported()


def measured_slowdown(dtype: torch.dtype, size: int = 256, repeats: int = 5) -> float:
    """How many times longer a ``[size,size]`` matrix product takes in ``dtype`` than in float32 on this CPU."""
    times = {}
    for kind in (torch.float32, dtype):
        a = torch.ones(size, size, dtype=kind)
        a @ a  # the first product also prepares the kernel
        laps = []
        for _ in range(repeats):
            start = time.perf_counter()
            a @ a
            laps.append(time.perf_counter() - start)
        times[kind] = min(laps)
    return times[dtype] / times[torch.float32]


def warn_of_slow_format(dtype: torch.dtype) -> None:
    """Warn that this CPU has no hardware for ``dtype``, with the slowdown of a matrix product measured now."""
    warnings.warn(
        f"this CPU has no hardware for {str(dtype).removeprefix('torch.')}: a matrix product takes "
        f"{measured_slowdown(dtype):.1f} times as long as in float32. Use it here to learn, not to save time",
        stacklevel=2,
    )
