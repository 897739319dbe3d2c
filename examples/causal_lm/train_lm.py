"""Train byte-level language models with treadle's and torch's layers in transformers' Trainer.

    python examples/causal_lm/train_lm.py                  LSTM: learn, save, load, write
    python examples/causal_lm/train_lm.py --mixer gru      GRU (or lltm, which torch does not have)
    python examples/causal_lm/train_lm.py --figures DIR    losses, tokens per second: JSON and PNG

It needs transformers and, unless --speeds-only skips training, accelerate. The text is that of
examples/characters.py (or --text FILE). The model, in recurrent_lm.py in this folder, has recurrent
layers instead of attention. The run with treadle's layers and the one with torch's start from the
same weights and see the same batches. So their losses differ only because of rounding errors, which
training amplifies.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # only locally saved files are loaded

NEEDED = "install what it needs: pip install 'transformers>=4.50' accelerate"
try:
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback
    from transformers.utils import logging
except ImportError as error:
    sys.exit(f"train_lm.py: {error}; {NEEDED}")

from lm_pictures import draw  # noqa: E402
from lm_speed import Workload, generation_speed, training_speed  # noqa: E402
from recurrent_lm import LAYERS, RecurrentForCausalLM, RecurrentLMConfig  # noqa: E402

from characters_text import find_text, read_text, split  # noqa: E402
from device_check import pick_device  # noqa: E402
from machine_facts import facts  # noqa: E402

PROMPT = "\nThe expression "


@dataclass
class Settings:
    """The settings of a run. The defaults suit two CPU cores and a minute."""

    mixer: str = "lstm"
    hidden: int = 128
    layers: int = 2
    batch: int = 16
    length: int = 128
    steps: int = 600
    learning_rate: float = 4e-3
    bf16: bool = False
    seed: int = 0

    def config(self, kernels: str) -> RecurrentLMConfig:
        return RecurrentLMConfig(
            mixer=self.mixer,
            kernels=kernels,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
        )


LARGE = {"hidden": 512, "layers": 4, "batch": 64, "length": 256, "learning_rate": 2e-3}
LARGE |= {"steps": 200, "bf16": True}
CPU_LOADS = [
    Workload("training", "float32", 16, 128),
    Workload("generation", "float32", 1, 64),
    Workload("generation", "float32", 16, 64),
    Workload("training", "bfloat16", 16, 128),
    Workload("generation", "bfloat16", 16, 64),
]
CUDA_LOADS = [
    Workload(task, dtype, batch, length)
    for dtype in ("bfloat16", "float32")
    for task, batch, length in (
        ("training", 64, 256),
        ("training", 16, 1024),
        ("generation", 1, 128),
        ("generation", 64, 128),
    )
]


class Pieces(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A text in pieces of equal length. The labels are the piece itself; the model shifts them."""

    def __init__(self, text: str, length: int) -> None:
        numbers = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
        self.pieces = numbers[: len(numbers) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


class RecordingTrainer(Trainer):
    """Records the loss of every step, without copying it to the host."""

    losses: list[Tensor]

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        found = super().compute_loss(model, inputs, *rest, **named)
        if model.training:
            self.losses.append((found[0] if isinstance(found, tuple) else found).detach())
            if len(self.losses) % 50 == 0:
                print(f"step {len(self.losses):5}  {bits(self.losses[-1]):.3f}", flush=True)
        return found


def bits(loss: Tensor | float) -> float:
    """Bits per byte, from a loss in nats."""
    return float(loss) / math.log(2)


def arguments(settings: Settings, device: torch.device, output: Path) -> TrainingArguments:
    made = TrainingArguments(
        output_dir=str(output),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch,
        per_device_eval_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.steps // 20,
        max_grad_norm=1.0,
        optim="adamw_torch",
        bf16=settings.bf16,
        use_cpu=device.type == "cpu",
        seed=settings.seed,
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    if made.n_gpu > 1:  # Trainer would spread each batch over all GPUs that it sees
        made._n_gpu = 1
    return made


def train(
    settings: Settings, kernels: str, text: str, device: torch.device, output: Path
) -> tuple[RecurrentForCausalLM, dict[str, Any]]:
    """Returns a model trained on ``text``, its losses in bits per byte, and its times."""
    learnt, held_out = (Pieces(part, settings.length) for part in split(text))
    set_seed(settings.seed)
    model = RecurrentForCausalLM(settings.config(kernels))
    trainer = RecordingTrainer(
        model=model,
        args=arguments(settings, device, output),
        train_dataset=learnt,
        eval_dataset=held_out,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.losses = []
    begun = time.perf_counter()
    trainer.train()
    losses = torch.stack(trainer.losses).float().cpu() / math.log(2)
    seconds = time.perf_counter() - begun
    found: dict[str, Any] = {
        "losses": [round(loss, 5) for loss in losses.tolist()],
        "held_out": round(bits(trainer.evaluate()["eval_loss"]), 4),
        "seconds": round(seconds, 1),
        "tokens_per_s": round(settings.steps * settings.batch * settings.length / seconds),
    }
    return model, found


def learn(
    settings: Settings, sides: list[str], text: str, device: torch.device, output: Path
) -> dict[str, Any]:
    """Train a model for each of ``sides``. Save and load treadle's model, and write a text."""
    runs = {}
    for kernels in sides:
        print(f"{kernels}'s {settings.mixer} on {device}, loss in bits per byte:")
        model, runs[kernels] = train(settings, kernels, text, device, output)
        words = "held out {held_out:.3f}; {seconds} s; {tokens_per_s:,} tokens/s"
        print(words.format(**runs[kernels]))
        if kernels == "treadle":
            model.save_pretrained(output)
            runs[kernels]["text"] = write(output, device)
            print(f"{runs[kernels]['text']}\n")
    return runs


def write(folder: Path, device: torch.device, count: int = 200) -> str:
    """A text sampled from the model saved in ``folder``, each byte from the 20 likeliest."""
    model = AutoModelForCausalLM.from_pretrained(folder).to(device).eval()
    prompt = torch.tensor([list(PROMPT.encode())], device=device)
    set_seed(0)
    drawn = model.generate(prompt, max_new_tokens=count, do_sample=True, top_k=20, temperature=0.7)
    return bytes(drawn[0].tolist()).decode(errors="replace")


def speeds(
    settings: Settings, loads: list[Workload], sides: list[str], device: torch.device
) -> list[dict[str, Any]]:
    """Tokens per second for each workload and each of ``sides``, which are called alternately."""
    rows = []
    for load in loads:
        measure = training_speed if load.task == "training" else generation_speed
        models = {kernels: RecurrentForCausalLM(settings.config(kernels)) for kernels in sides}
        found = measure({kernels: model.to(device) for kernels, model in models.items()}, load)
        rows.append(asdict(load) | {"tokens_per_s": found})
        times = "".join(f"  {kernels} {value:12,.0f}" for kernels, value in found.items())
        print(f"{load.task:10} {load.dtype:8} {load.batch:3} x {load.length:4}{times}", flush=True)
    return rows


def parse(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--mixer", choices=sorted({mixer for mixer, _ in LAYERS}), default="lstm")
    add("--steps", type=int, help="training steps")
    add("--hidden", type=int)
    add("--seed", type=int, default=0)
    add("--bf16", action="store_true", default=None, help="train in bfloat16 (default on a GPU)")
    add("--device", choices=("cpu", "cuda"), help="default: the GPU if treadle runs on it")
    add("--text", type=Path, metavar="FILE", help="the text to learn (UTF-8)")
    out = Path(__file__).resolve().parents[1] / "out" / "causal_lm"
    add("--output", type=Path, metavar="DIR", default=out, help=f"folder of the model ({out})")
    add("--figures", type=Path, metavar="DIR", help="also measure speeds; write JSON and PNG there")
    add("--speeds-only", action="store_true", help="with --figures: do not train first")
    options = parser.parse_args(given)
    if not options.speeds_only and importlib.util.find_spec("accelerate") is None:
        sys.exit(f"train_lm.py: accelerate is missing; {NEEDED}")
    return options


def main(given: list[str] | None = None) -> dict[str, Any]:
    options = parse(given)
    logging.disable_progress_bar()
    # A second thread helps little with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    device = torch.device(options.device) if options.device else pick_device()
    asked = {n: getattr(options, n) for n in ("mixer", "steps", "hidden", "seed", "bf16")}
    large = LARGE if device.type == "cuda" else {}
    chosen = {name: value for name, value in asked.items() if value is not None}
    settings = Settings(**(large | chosen))
    machine = facts(device.type, "transformers") | {"threads": 1}
    machine["allow_tf32"] = torch.backends.cudnn.allow_tf32  # for recurrent layers in float32
    sides = [side for side in ("treadle", "torch") if (settings.mixer, side) in LAYERS]
    record: dict[str, Any] = {"machine": machine, "settings": asdict(settings), "runs": {}}
    if not options.speeds_only:
        text = read_text(options.text) if options.text else find_text()
        record["runs"] = learn(settings, sides, text, device, options.output)
    if options.figures:
        loads = CUDA_LOADS if device.type == "cuda" else CPU_LOADS
        record["speeds"] = speeds(settings, loads, sides, device)
        options.figures.mkdir(parents=True, exist_ok=True)
        path = options.figures / f"causal_lm_{device.type}.json"
        path.write_text(json.dumps(record) + "\n")
        draw(record, path.with_suffix(".png"))
    return record


if __name__ == "__main__":
    main()
