"""A draft becomes tokens: through the chat template, or as plain text for base models."""

from __future__ import annotations

from octavo.errors import InvalidRequest
from octavo.evaluation.protocols import TextTokenizer
from octavo.evaluation.ruler.task import Draft

__all__ = ["Prompter"]


class Prompter:
    """Turns drafts into tokens. `chat` None asks the tokenizer whether it has a chat template.

    In a chat the answer prefix follows the assistant's header, so the model goes on with its own answer.
    """

    def __init__(self, tokenizer: TextTokenizer, *, chat: bool | None = None) -> None:
        if chat and not tokenizer.has_chat:
            raise InvalidRequest("this model has no chat template; use base prompting (--prompting base)")
        self.tokenizer = tokenizer
        self.chat = tokenizer.has_chat if chat is None else chat

    def tokens(self, draft: Draft) -> list[int]:
        """The token ids of prompt and answer prefix."""
        if not self.chat:
            return self.tokenizer.encode(draft.prompt + draft.prefix)
        opened = self.tokenizer.chat([{"role": "user", "content": draft.prompt}])
        return [*opened, *self.tokenizer.encode(draft.prefix, special=False)]
