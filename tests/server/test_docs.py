"""docs/server.md names every field, error code, route and metric there is."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.server import errors, fields
from octavo.server.app import ROUTES, create_app
from octavo.server.chat import ChatBody, Message
from octavo.server.completions import CompletionBody
from octavo.server.schemas import DocumentBody
from tests.server.fake import FakeEngine

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "server.md").read_text()


def test_every_field_is_documented() -> None:
    bodies = (ChatBody, CompletionBody, DocumentBody, Message)
    names = {name for body in bodies for name in (*body.model_fields, *body.inert)}
    names |= {*fields.PART, *fields.STREAM_OPTIONS}
    assert {name for name in names if not re.search(rf"[`.]{name}`", DOC)} == set()


def test_every_code_is_documented() -> None:
    source = "".join(path.read_text() for path in Path(errors.__file__).parent.glob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', source)) | {kind.code for kind in errors.MAP.values()}
    missing = {code for code in codes if f"`{code}`" not in DOC}
    assert missing == {"unknown_name", "unsupported_model"}, "those two are raised before anything is served"


def test_every_route_is_documented() -> None:
    assert [route.path for route in ROUTES if route.path.replace(":path", "") not in DOC] == []


def test_every_metric_is_documented() -> None:
    engine = FakeEngine()
    page = create_app(engine, engine).state.service.metrics.page().decode()
    names = set(re.findall(r"^# TYPE (\w+) ", page, re.M))
    created = {name for name in names if name.endswith("_created")}
    assert {name for name in names - created if f"`{name}`" not in DOC} == set()
