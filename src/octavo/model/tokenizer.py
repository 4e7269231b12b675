"""Text to tokens and back, with the chat template and the document boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from threading import Lock
from typing import Any

from octavo.errors import InvalidRequest
from octavo.model.chat import ChatTemplate, Message, Piece
from octavo.model.detokenizer import Detokenizer, Spelling
from octavo.model.longest import longest_token

__all__ = ["Tokenizer"]


class Tokenizer:
    """One model's tokenizer.

    Control tokens (`<|im_end|>`, ...) count as such only where the caller writes tokens himself: in raw
    prompts and in the template. Inside chat messages and documents they are ordinary text.

    eos_ids     tokens that end an answer
    bos_id      the token that starts a text; None where the model wants none
    """

    def __init__(self, backend: Any, *, eos_ids: Iterable[int] = ()) -> None:
        self._backend = backend
        self._lock = Lock()  # the backend's treatment of control tokens is a switch all threads share
        self._check: Callable[[int], object] | None = None
        self._longest = longest_token(backend)
        self._spelling = Spelling(backend)
        self._prefix = self._start_tokens()
        self._anchor = self._find_anchor()
        self._template = ChatTemplate(backend) if backend.chat_template else None
        own = [backend.eos_token_id] if backend.eos_token_id is not None else []
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([*eos_ids, *own]))
        self.bos_id: int | None = self._prefix[0] if self._prefix else None
        self.vocab_size: int = len(backend)

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def within(self, check: Callable[[int], object]) -> Tokenizer:
        """The same tokenizer, but before a text is tokenised `check` hears how many tokens it has at least,
        where its length proves any, and may raise."""
        view = copy(self)
        view._check = check
        return view

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a raw prompt, control tokens included; `special` starts it with BOS where wanted."""
        return [*(self._prefix if special else ()), *self._encode([(text, True)])]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`; special tokens have none."""
        detokenizer = self.stream()
        text = detokenizer.extend(tokens) + detokenizer.flush()
        return text.removeprefix(" ") if self._spelling.strips_first else text

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` spells; none for special tokens."""
        return self._spelling[token]

    def stream(self) -> Detokenizer:
        """A detokenizer for one answer."""
        return Detokenizer(self._spelling)

    def chat(self, messages: Sequence[Message], *, continue_final: bool = False) -> list[int]:
        """The tokens of a conversation and the opening of the answer.

        `continue_final` leaves the last message open instead, for the model to go on with.
        """
        return self._encode(self._chat().render(messages, continue_final=continue_final))

    def chat_text(self, messages: Sequence[Message], *, continue_final: bool = False) -> str:
        """The same as text: control tokens, also those that stood in messages, are spelled out."""
        return "".join(text for text, _ in self._chat().render(messages, continue_final=continue_final))

    def document(self, text: str, *, raw: bool) -> list[int]:
        """The tokens that a document's readers share: what precedes it, and its text as one unit.

        With a chat template the document opens the user's turn.
        """
        if not text:
            raise InvalidRequest("the document is empty; give it at least one character")
        if raw or self._template is None:
            return [*self._prefix, *self._encode([(text, False)])]
        return self._encode(self._template.document(text))

    def after_document(self, prompt: str | Sequence[Message], *, raw: bool) -> list[int]:
        """The tokens that follow a document: the instruction, the end of the turn, the answer's opening.

        A system message cannot precede a shared document, so it stands at the start of the instruction.
        """
        if isinstance(prompt, str) and (raw or self._template is None):
            return self._encode([(prompt, True)], start=False)
        if raw:
            raise InvalidRequest("a raw document is followed by text, not by chat messages; give one string")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self._encode(self._chat().after_document(messages), start=False)

    def _chat(self) -> ChatTemplate:
        if self._template is None:
            raise InvalidRequest("this model has no chat template; send one text instead of messages")
        return self._template

    def _encode(self, pieces: Sequence[Piece], *, start: bool = True) -> list[int]:
        if self._check is not None and self._longest is not None:
            self._check(-(-sum(len(text) for text, _ in pieces) // self._longest))
        tokens: list[int] = []
        for n, (text, control) in enumerate(pieces):
            inside = control and (n > 0 or not start)
            tokens += self._continue(text) if inside else self._plain(text, control=control)
        return tokens

    def _continue(self, text: str) -> list[int]:
        """The tokens of a text that follows others: no BOS, and no space that only starts of texts get."""
        tokens = self._plain(self._anchor + text, control=True)
        return tokens[1:] if self._anchor else tokens

    def _find_anchor(self) -> str:
        """A control token behind which a vocabulary adds no space of its own; none where it never does."""
        bos = self._backend.bos_token
        if not bos or not self._spelling.strips_first:
            return ""
        anchored = self._plain(bos + "a", control=True)
        return bos if anchored[0] == self._backend.bos_token_id and anchored[1:] != self._plain("a") else ""

    def _plain(self, text: str, *, control: bool = True) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"character {error.start} of the text is half of a surrogate pair, which is no text: bytes "
                "that are not UTF-8 were read as if they were; decode them first"
            ) from error
        with self._lock:
            encoded = self._backend(
                text, add_special_tokens=False, split_special_tokens=not control, verbose=False
            )
        return list(encoded["input_ids"])

    def _start_tokens(self) -> tuple[int, ...]:
        """What the model wants before any text, usually BOS; an EOS that some add behind is left out."""
        bare = self._plain("a")
        full = list(self._backend("a")["input_ids"])
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return tuple(full[:start])
        return ()
