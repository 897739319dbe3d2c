"""A byte-level causal language model for transformers, with recurrent layers instead of attention.

The layers are ``treadle.nn.LSTM``, ``GRU`` or ``LLTM``, or torch's LSTM or GRU
(``kernels="torch"``). ``generate()`` uses their states as its cache, whose size does not depend on
the length of the text. Importing this file registers the model, so that
``AutoModelForCausalLM.from_pretrained`` can load it. Written for transformers 4.50 to 5.24.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

import treadle


class TorchLSTM(nn.LSTM):
    """torch's LSTM, which also works under autocast on a CPU for which oneDNN has no bfloat16 LSTM.
    There, nn.LSTM raises, and this class computes in float32."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        onednn = torch.backends.mkldnn.is_available()
        if input.is_cuda or (onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            return super().forward(input, hx)
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.to(self.weight_ih_l0.dtype), hx)


LAYERS: dict[tuple[str, str], type[nn.Module]] = {
    ("lstm", "treadle"): treadle.nn.LSTM,
    ("gru", "treadle"): treadle.nn.GRU,
    ("lltm", "treadle"): treadle.nn.LLTM,
    ("lstm", "torch"): TorchLSTM,
    ("gru", "torch"): nn.GRU,
}
HALVES = (torch.float16, torch.bfloat16)
States = tuple[Tensor, ...]  # h, and c if the cell has one: each [1, B, H]
# transformers 5.24 renamed the cache of a model from "past_key_values" to "cache".
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__annotations__ else "past_key_values"


class RecurrentLMConfig(PretrainedConfig):
    """The configuration of a model.

    Args:
        mixer: "lstm", "gru" or "lltm".
        kernels: "treadle", or "torch" for torch's layer of the same name (torch has no LLTM).
        cell_pull: the weight of the mean of |c|, which is added to the training loss of an LLTM.
            An LLTM has no forget gate, so without this penalty |c| would grow.
    """

    model_type = "treadle-recurrent-lm"
    keys_to_ignore_at_inference = [CACHE]

    def __init__(
        self,
        mixer: str = "lstm",
        kernels: str = "treadle",
        vocab_size: int = 256,
        hidden_size: int = 128,
        num_hidden_layers: int = 2,
        dropout: float = 0.0,
        cell_pull: float = 0.01,
        use_cache: bool = True,
        **rest: Any,
    ) -> None:
        self.mixer, self.kernels = mixer, kernels
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.dropout = num_hidden_layers, dropout
        self.cell_pull, self.use_cache = cell_pull, use_cache
        if (mixer, kernels) not in LAYERS:
            known = ", ".join("/".join(pair) for pair in LAYERS)
            raise ValueError(
                f"RecurrentLMConfig: mixer/kernels must be one of {known}, got {mixer}/{kernels}"
            )
        # A text begins with a newline (byte 10). The padding is byte 0, because no text contains
        # it. There is no end-of-text token.
        super().__init__(**{"bos_token_id": 10, "pad_token_id": 0, "eos_token_id": None} | rest)


class RecurrentCache:
    """The states of all blocks after the tokens read so far. The cache has a constant size.

    It has the methods that ``generate()`` calls on a cache; beam search calls ``reorder_cache``.
    In transformers 4.57 and later, ``generate()`` also accepts a cache to start from.
    """

    is_compileable = is_croppable = False

    def __init__(self, blocks: int) -> None:
        self.states: list[States | None] = [None] * blocks
        self.is_linear = [True] * blocks  # transformers' name for states of constant size
        self.seen = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i continues from the state of row ``beam_idx[i]``."""
        self.states = [
            states and tuple(state.index_select(1, beam_idx.to(state.device)) for state in states)
            for states in self.states
        ]


class Block(nn.Module):
    """A recurrent layer and an MLP, each after a norm and with a residual connection."""

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.mixer_norm = nn.RMSNorm(size)
        self.mixer = LAYERS[config.mixer, config.kernels](size, size, batch_first=True)
        self.mlp_norm = nn.RMSNorm(size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
        self.dropout = nn.Dropout(config.dropout)
        # With inputs of half types, treadle's layers accept a float32 c. So c, which is a sum over
        # the text, keeps its precision within a call and between calls.
        self.wide_cell = config.kernels == "treadle" and config.mixer != "gru"
        self.one_state = config.mixer == "gru"

    def forward(
        self, x: Tensor, states: States | None, begins: Tensor | None
    ) -> tuple[Tensor, States]:
        """Map x [B, T, H] to the same shape. The state of a row resets before each step for which
        ``begins`` [B, T] is true."""
        if states is None and self.wide_cell and x.dtype in HALVES:
            h = x.new_zeros(1, x.size(0), x.size(2))
            states = h, h.float()
        given = states[0] if states is not None and self.one_state else states
        marks = {} if begins is None else {"reset": begins}
        output, last = self.mixer(self.mixer_norm(x), given, **marks)
        x = x + self.dropout(output)
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x, (last,) if self.one_state else last


class RecurrentForCausalLM(PreTrainedModel, GenerationMixin):
    """Scores the next byte at every position of a text."""

    config_class = RecurrentLMConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    accepts_loss_kwargs = False  # for Trainer: the loss is a mean over the given batch
    _is_stateful = True  # a state cannot be rolled back to an earlier position

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: RecurrentCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        past_key_values: RecurrentCache | None = None,
    ) -> CausalLMOutputWithPast:
        """Read a text, or continue reading one.

        Args:
            input_ids: [B, T]; with a ``cache``, only the new tokens.
            attention_mask: [B, S], 0 at padding, which must be on the left, and 1 at the text.
                S also counts the tokens read before, so S >= T.
            labels: [B, T], the tokens of ``input_ids``, or -100 at positions that do not count.
                With labels the result has a ``loss``.
            cache: the states after the tokens read before. They are updated in place.
            use_cache: whether to return a cache. None means the config's ``use_cache``, but False
                in training.
            logits_to_keep: for how many of the last positions to compute logits; 0 means all.
            return_dict: ignored.
            past_key_values: the name of ``cache`` in transformers before 5.24.
        """
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        cache = cache or past_key_values or RecurrentCache(len(self.blocks))
        begins = self._begins(attention_mask, input_ids.size(1))
        x = self.embedding(input_ids)
        cells = []
        for place, block in enumerate(self.blocks):
            x, states = block(x, cache.states[place], begins)
            cells.append(states[-1])
            cache.states[place] = states
        cache.seen += input_ids.size(1)
        # Tied weights: the embedding also scores the tokens.
        logits = F.linear(self.norm(x[:, -logits_to_keep:]), self.embedding.weight)
        loss = None if labels is None else self._loss(logits, labels, cells)
        returned = {CACHE: cache if use_cache else None}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **returned)

    def _loss(self, logits: Tensor, labels: Tensor, cells: list[Tensor]) -> Tensor:
        scores = logits[:, :-1].flatten(0, 1).float()
        loss = F.cross_entropy(scores, labels[:, 1:].flatten().to(scores.device))
        if self.training and self.config.mixer == "lltm":
            loss = loss + self.config.cell_pull * torch.stack(cells).abs().mean()
        return loss

    def _begins(self, mask: Tensor | None, steps: int) -> Tensor | None:
        """Resets [B, T]: true where a text begins after padding. None if there is no padding."""
        # A single token continues a text, so its mask is not needed. Reading it would make the host
        # wait for the GPU at each step of generate().
        if mask is None or steps == 1 or bool(mask.all()):
            return None
        if self.config.kernels == "torch":
            raise ValueError(
                'forward: attention_mask must be all ones with kernels="torch", got zeros: '
                "torch's layers cannot reset in the middle of a row"
            )
        begins = mask.bool() & ~F.pad(mask[:, :-1].bool(), (1, 0), value=True)
        return begins[:, -steps:]

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        cache: RecurrentCache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 1,
        past_key_values: RecurrentCache | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """The arguments of forward in a step of ``generate()``, with only the unread tokens."""
        cache = cache or past_key_values
        seen = 0 if cache is None else cache.get_seq_length()
        return {
            "input_ids": input_ids[:, seen:],
            "cache": cache,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep,
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Prevents ``generate()`` from making a cache for attention."""
        return False

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = value

    def _init_weights(self, module: nn.Module) -> None:
        # transformers patches the functions of torch.nn.init so that they leave loaded weights as
        # they are. So this method changes weights only by these functions.
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, tuple(LAYERS.values())):
            bound = module.hidden_size**-0.5
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -bound, bound)


AutoConfig.register(RecurrentLMConfig.model_type, RecurrentLMConfig)
AutoModelForCausalLM.register(RecurrentLMConfig, RecurrentForCausalLM)
