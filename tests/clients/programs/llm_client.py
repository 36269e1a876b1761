"""The command line client ``llm``: chat and responses, plain and streamed, and a conversation that goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

from client_report import QUESTION, SEED, report

# YAML in its JSON form.
common = {"model_name": os.environ["MODEL"], "api_base": os.environ["OPENAI_BASE_URL"]}
models = [{"model_id": "chat", **common}, {"model_id": "responses", **common, "responses": True}]
Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text(json.dumps(models))


def said(*arguments: str) -> str:
    return subprocess.check_output([sys.executable, "-m", "llm", "prompt", *arguments, QUESTION], text=True).strip()


seed = ("-o", "seed", str(SEED))
texts = {
    "chat": said("-m", "chat", *seed, "--no-stream"),
    "chat_streamed": said("-m", "chat", *seed),
    "conversation": said("--continue", *seed),
    "system": said("-m", "chat", *seed, "--system", "Be brief."),
    "responses": said("-m", "responses", "--no-stream"),
    "responses_streamed": said("-m", "responses"),
}
report(texts, sys.argv[1])
