"""`--engine URL [--model NAME]`: what it means, asked of the server itself."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

from polar.types.errors import InputError, NotReady

ANSWER_S = 10.0


@dataclass(frozen=True)
class Engine:
    """An inference server: its base URL without `/v1`, and the model to ask it for."""

    url: str
    model: str


def find(url: str, model: str | None) -> Engine:
    """The engine behind a URL with or without `/v1`, and its only model where none is named.

    Raises InputError for a bad URL and for a model that it lacks, NotReady where it doesn't answer as an OpenAI-like server does.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InputError("--engine", url, "expected http://host:port, with or without /v1")
    served = _models(base)
    if model is None and len(served) != 1:
        raise InputError("--model", None, f"{base} serves {', '.join(served) or 'no model'}; name one")
    if model is not None and model not in served:
        raise InputError("--model", model, f"{base} serves {', '.join(served) or 'no model'}")
    return Engine(base, model or served[0])


def _models(base: str) -> list[str]:
    request = urllib.request.Request(f"{base}/v1/models", headers={"Accept": "application/json"})  # noqa: S310 - checked by find
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:  # noqa: S310
            listed = json.load(response)
        return [str(model["id"]) for model in listed["data"]]
    except (OSError, ValueError) as error:
        raise NotReady(f"the engine at {base} doesn't answer: {getattr(error, 'reason', error)}") from None
    except (KeyError, TypeError):
        raise NotReady(f"what answers at {base}/v1/models is no inference server with OpenAI's routes") from None
