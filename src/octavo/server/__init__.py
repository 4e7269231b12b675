"""The HTTP server: OpenAI's routes and Octavo's documents over one engine.

A request's way: gate.py (id, key, count) → chat.py or completions.py (schemas.py, fields.py) → generation.py
(the engine's deltas) → reply.py (JSON, or events through sse.py). Errors become JSON in errors.py alone.
"""

from __future__ import annotations

from octavo.server.app import create_app
from octavo.server.serve import serve

__all__ = ["create_app", "serve"]
