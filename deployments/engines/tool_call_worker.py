"""Worker process that reads the calls in texts of a model: one text with its tools per line, one reply per line.

A script, started by ``deployments.service.tool_calls``: importing vLLM takes a controller 10 s and 420 MB, and a parser
reads what a model wrote, which may take it any time. It ends when its stdin closes, so it never outlives its parent.
"""

import contextlib
import json
import os
import signal
import sys

NICENESS = 5
"""Added to that of the controller: an engine on the same core goes first."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    # Output that a library prints to stdout must not be read as a reply.
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    greeting = json.loads(sys.stdin.readline())
    # The path of the parent, whose settings may name modules beside the project.
    sys.path[:] = greeting["path"]
    from deployments.engines.settings import GeneratorSettings
    from deployments.engines.tokenizers import load_tokenizer
    from deployments.engines.tool_parsers import CallParser, ToolParserError

    try:
        tokenizer = load_tokenizer(GeneratorSettings.model_validate_json(greeting["generator"]))
        parser = CallParser(greeting["parser"], tokenizer)
    except ToolParserError as error:
        replies.write(json.dumps({"error": str(error)}) + "\n")
        return
    replies.write("{}\n")
    for line in sys.stdin:
        text, tools = json.loads(line)
        replies.write(json.dumps(parser.parsed(text, tools)) + "\n")


if __name__ == "__main__":
    main()
