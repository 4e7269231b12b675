"""Octavo as a model of lm-evaluation-harness, so that any of its tasks runs on compressed pages.

The harness finds models in its own registry and has no plug-ins, so this module registers "octavo" when it is
imported and is itself the command: `python -m octavo.evaluation.lm_eval --model octavo --model_args
pretrained=smollm2-135m,k=q8_0,v=q4_0 --tasks …` takes everything that `lm_eval` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

try:
    import lm_eval.models  # noqa: F401  registers the harness's own models first
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"{error}; pip install 'octavo[lm-eval]' brings the harness") from None
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor
from tqdm import tqdm

from octavo.engine.engine import Engine
from octavo.engine.requests import Sampling
from octavo.errors import InvalidRequest, unknown
from octavo.recipe import Recipe

__all__ = ["OctavoLM", "main"]

_CHUNK = 64
"""Tokens scored at a time: those of one chunk see each other exactly, as in serving the open page does."""

_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed"}
_LENGTH = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_IGNORED = {"do_sample", "until", *_LENGTH}

Pair = tuple[tuple[str, str], list[int], list[int]]
"""(texts), context tokens, continuation tokens."""


@register_model("octavo")
class OctavoLM(TemplateLM):  # type: ignore[misc]
    """`pretrained` names the model as `octavo run` does; other arguments are the recipe's and the engine's.

    recipe    a recipe file; settings beside it win
    engine    one that exists already; then no other argument is taken
    """

    backend = "causal"

    def __init__(
        self,
        pretrained: str = "",
        *,
        engine: Engine | None = None,
        device: str | None = None,
        dtype: str = "auto",
        memory: str | None = None,
        batch_size: int | str = 64,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        chunk: int = _CHUNK,
        **recipe: Any,
    ) -> None:
        super().__init__()
        if engine is None and not pretrained:
            raise InvalidRequest("no model; write --model_args pretrained=NAME")
        sequences = 64 if batch_size == "auto" else int(batch_size)
        self._engine = engine or Engine(
            pretrained,
            _recipe(recipe),
            device=device or "auto",
            dtype=dtype,
            memory=memory,
            context=max_length,
            max_sequences=sequences,
        )
        self._chunk, self.max_gen_toks = chunk, max_gen_toks
        self.tokenizer = None

    @property
    def max_length(self) -> int:
        """Tokens of context and continuation together."""
        return self._engine.context

    @property
    def eot_token_id(self) -> int:
        return self._engine.tokenizer.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is: BOS, or EOS where the model has none."""
        bos = self._engine.tokenizer.bos_id
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Tokens of `string`; a BOS that a chat template wrote is not doubled."""
        tokenizer = self._engine.tokenizer
        tokens = tokenizer.encode(string, special=add_special_tokens is not False)
        doubled = add_special_tokens is None and tokens[:2] == [tokenizer.bos_id] * 2
        return tokens[1:] if doubled else tokens

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        # Sorted by tokens, requests that begin alike follow each other and read each other's pages.
        order = sorted(range(len(requests)), key=lambda n: (requests[n][1], requests[n][2]))
        windows = [requests[n][1:] for n in order]
        found: dict[int, tuple[float, bool]] = {}
        for at, value in self._likelihoods(windows, disable_tqdm):
            n = order[at]
            found[n] = value
            if (texts := requests[n][0]) is not None:
                self.cache_hook.add_partial("loglikelihood", texts, value)
        return [found[n] for n in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows of the full context."""
        texts = [request.args[0] for request in requests]
        windows = [(n, window) for n, text in enumerate(texts) for window in self._windows(text)]
        totals = [0.0] * len(texts)
        for at, (value, _) in self._likelihoods([window for _, window in windows], disable_tqdm):
            totals[windows[at][0]] += value
        for text, total in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers up to a stop string; prompts run as one batch, and equal beginnings are computed once."""
        prompts, rules = [], []
        for request in requests:
            context, settings = request.args
            rules.append(self._sampling(settings))
            room = self.max_length - (rules[-1].max_tokens or 1)
            prompts.append(self.tok_encode(context)[-room:])
        answers = self._engine.generate(prompts, rules) if prompts else []
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer.text)
        return [answer.text for answer in answers]

    def _windows(self, text: str) -> Iterable[tuple[list[int], list[int]]]:
        tokens = self.tok_encode(text, add_special_tokens=False)
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
        return map(make_disjoint_window, windows)

    def _likelihoods(
        self, windows: Sequence[tuple[list[int], list[int]]], quiet: bool
    ) -> Iterator[tuple[int, tuple[float, bool]]]:
        """Of (context, continuation) pairs, as each ends: its place, the continuation's log-probability, and
        whether it is what greedy decoding would say."""
        rows = [self._row(context, continuation) for context, continuation in windows]
        sums = [(0.0, True)] * len(rows)
        scored = self._engine.score_many(rows, chunk=self._chunk)
        with tqdm(total=len(rows), disable=quiet, desc="log-likelihoods") as bar:
            for n, start, hidden in scored:
                (tokens, first), continuation = rows[n], windows[n][1]
                skip = max(0, first - start)
                if skip < len(hidden):
                    wanted = continuation[start + skip - first : start + len(hidden) - first]
                    value, same = _chosen(self._engine.head(hidden[skip:]), wanted)
                    sums[n] = sums[n][0] + value, sums[n][1] and same
                if start + len(hidden) == len(tokens):
                    bar.update()
                    yield n, sums[n]

    def _row(self, context: list[int], continuation: list[int]) -> tuple[list[int], int]:
        """What the model reads, and the first row that predicts a token of the continuation."""
        tokens = [*context, *continuation][-(self.max_length + 1) :][:-1]
        first = len(tokens) - len(continuation)
        if first < 0:
            raise InvalidRequest(
                f"a continuation has {len(continuation)} tokens, the context is {self.max_length}"
            )
        return tokens, first

    def _sampling(self, settings: dict[str, Any]) -> Sampling:
        extra = settings.keys() - _SAMPLING - _IGNORED
        if extra:
            raise unknown("generation setting", min(extra), _SAMPLING | _IGNORED)
        until = settings.get("until") or []
        stop = tuple(s for s in ([until] if isinstance(until, str) else until) if s)
        length = next((int(settings[name]) for name in _LENGTH if name in settings), self.max_gen_toks)
        chosen = {name: settings[name] for name in _SAMPLING & settings.keys()}
        if not settings.get("do_sample", chosen.get("temperature", 0) > 0):
            chosen["temperature"] = 0.0
        return Sampling(max_tokens=length, stop=stop, **chosen)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text, its control tokens spelled out."""
        return self._engine.tokenizer.chat_text(chat_history, continue_final=not add_generation_prompt)

    @property
    def tokenizer_name(self) -> str:
        return self._engine.name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """What fingerprints the template in the harness's caches: a conversation rendered by it."""
        return self.apply_chat_template([{"role": "user", "content": "?"}]) if chat_template else None


def _recipe(settings: dict[str, Any]) -> Recipe:
    """The recipe of --model_args; unknown names are refused with a suggestion."""
    known = set(Recipe.names())
    path = settings.pop("recipe", None)
    for name in settings:
        if name not in known:
            raise unknown(
                "model argument",
                name,
                known | {"pretrained", "device", "dtype", "memory", "chunk", "recipe"},
            )
    own = Recipe.from_dict(settings)  # checks types
    return Recipe.load(path).with_(**settings) if path else own


def _chosen(logits: Tensor, wanted: list[int]) -> tuple[float, bool]:
    """Logits [n, V] → the summed log-probability of wanted [n], and whether each is the most likely."""
    targets = torch.tensor(wanted, device=logits.device)
    chosen = logits.gather(-1, targets[:, None]).squeeze(-1).double()
    value = (chosen - logits.double().logsumexp(-1)).sum()
    return float(value), bool((logits.argmax(-1) == targets).all())


def main() -> None:
    """`lm_eval`'s command line, with octavo among its models."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
