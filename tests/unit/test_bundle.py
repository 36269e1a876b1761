"""What `make bundle` collects, and which bundles `make setup BUNDLE=` refuses. The packages are made here."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch-1.0+cpu", "torch-1.0", "torchvision-1.0+cpu", "torchvision-1.0", "example-1.0", "uv-1.0")
VERSION = f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def write_wheel(folder: Path, package: str) -> None:
    name, _, version = package.partition("-")
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{package}-py3-none-any.whl", "w") as wheel:
        info = f"{package}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def write_tree(root: Path) -> None:
    """The files that set-up reads, with short locks, beside an index that has `PACKAGES` and nothing else."""
    for name in ("Makefile", "pyproject.toml", "scripts/setup", "scripts/environment"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    locks = {
        "cpu.lock": "example==1.0\ntorch==1.0\n",
        "cuda.lock": "example==1.0\ntorch==1.0\ntorchvision==1.0\n",
        "cpu.dev.lock": "uv==1.0\n",
        "cuda.dev.lock": "uv==1.0\n",
    }
    (root / "requirements").mkdir()
    for name, pins in locks.items():
        (root / "requirements" / name).write_text(f"# A comment.\n{pins}")
    for package in PACKAGES:
        write_wheel(root / "index", package)


def make(tree: Path, target: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs make where pip is set up for the index of the tree."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tree / "index")}
    assignments = [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run(
        ["make", "--no-print-directory", target, f"PYTHON={sys.executable}", *assignments],
        cwd=tree,
        env={**inherited, **index, "HOME": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree with a bundle for each kind of hardware."""
    tree = tmp_path_factory.mktemp("collected") / "tree"
    write_tree(tree)
    for kind in ("cpu", "cuda"):
        done = make(tree, "bundle", KIND=kind)
        assert done.returncode == 0, done.stderr
    return tree


@pytest.fixture
def tree(tmp_path: Path, collected: Path) -> Path:
    """The same, for one test to change."""
    return Path(shutil.copytree(collected, tmp_path / "tree"))


@pytest.mark.parametrize(
    ("kind", "wheels"),
    [
        ("cpu", {"torch-1.0+cpu", "example-1.0", "uv-1.0"}),
        ("cuda", {"torch-1.0", "torchvision-1.0", "example-1.0", "uv-1.0"}),
    ],
)
def test_a_bundle_has_the_wheels_of_the_locks_in_the_builds_of_its_hardware(
    kind: str, wheels: set[str], collected: Path
) -> None:
    bundle = collected / f"bundle-{kind}"
    assert {each.name.removesuffix("-py3-none-any.whl") for each in (bundle / "wheels").iterdir()} == wheels
    files = {str(each.relative_to(bundle)) for each in bundle.rglob("*") if each.is_file()}
    summed = {line.split()[1].removeprefix("./") for line in (bundle / "SHA256SUMS").read_text().splitlines()}
    assert files == {*summed, "SHA256SUMS"}


def test_a_bundle_is_not_mixed_with_another(tree: Path) -> None:
    refused = make(tree, "bundle", KIND="cuda", BUNDLE="bundle-cpu")
    assert refused.returncode != 0
    assert f"bundle-cpu is already there, and it is for cpu, {VERSION}" in refused.stderr
    assert (tree / "bundle-cpu" / "SHA256SUMS").exists()


def damage_wheel(bundle: Path) -> None:
    wheel = bundle / "wheels" / "example-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes().replace(b"Name: example", b"Name: exbmple"))


def remove_wheel(bundle: Path) -> None:
    (bundle / "wheels" / "torch-1.0+cpu-py3-none-any.whl").unlink()


def cut_off_sums(bundle: Path) -> None:
    sums = bundle / "SHA256SUMS"
    sums.write_bytes(sums.read_bytes()[:-20])


def remove_sums(bundle: Path) -> None:
    (bundle / "SHA256SUMS").unlink()


def change_python(bundle: Path) -> None:
    target = bundle / "target"
    target.write_text(target.read_text().replace(VERSION, "Python 3.99"))


def change_lock(bundle: Path) -> None:
    (bundle.parent / "requirements" / "cpu.lock").write_text("example==1.1\ntorch==1.0\n")


def empty(bundle: Path) -> None:
    shutil.rmtree(bundle)
    bundle.mkdir()


REFUSALS: Mapping[Callable[[Path], None], str] = {
    damage_wheel: "wheels/example-1.0-py3-none-any.whl: FAILED",
    remove_wheel: "wheels/torch-1.0+cpu-py3-none-any.whl: No such file",
    cut_off_sums: "damaged or missing",
    remove_sums: "it has no SHA256SUMS",
    change_python: f"it is for cpu, Python 3.99, {os.uname().machine}, not for cpu, {VERSION}, {os.uname().machine}",
    change_lock: "it was made with another requirements/cpu.lock",
    empty: "it is no bundle",
    shutil.rmtree: "there is no folder bundle-cpu",
}


@pytest.mark.parametrize("change", REFUSALS, ids=lambda change: change.__name__)
def test_set_up_refuses_a_bundle_by_the_name_of_what_is_wrong(change: Callable[[Path], None], tree: Path) -> None:
    change(tree / "bundle-cpu")
    refused = make(tree, "setup", BUNDLE="bundle-cpu", BANYAN_HARDWARE="cpu")
    assert refused.returncode != 0
    assert REFUSALS[change] in refused.stderr
    assert not (tree / ".venv").exists()


@pytest.mark.parametrize(("kind", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_set_up_refuses_a_bundle_for_the_other_kind_of_hardware(kind: str, other: str, tree: Path) -> None:
    refused = make(tree, "setup", BUNDLE=f"bundle-{other}", BANYAN_HARDWARE=kind)
    assert refused.returncode != 0
    assert f"it is for {other}, {VERSION}" in refused.stderr
    assert f"not for {kind}, {VERSION}" in refused.stderr
    assert not (tree / ".venv").exists()


@pytest.mark.long
def test_set_up_takes_packages_from_the_bundle_alone(tree: Path) -> None:
    """Also where pip is set up to find them elsewhere: the torch that it installs first is that of the bundle."""
    bundle = tree / "bundle-cpu"
    (bundle / "wheels" / "torch-1.0+cpu-py3-none-any.whl").unlink()
    sums = (bundle / "SHA256SUMS").read_text().splitlines(keepends=True)
    (bundle / "SHA256SUMS").write_text("".join(line for line in sums if "torch" not in line))
    refused = make(tree, "setup", BUNDLE="bundle-cpu", BANYAN_HARDWARE="cpu")
    assert refused.returncode != 0
    assert "found no usable CPU build of torch==1.0" in refused.stderr
    assert not [*(tree / ".venv").rglob("torch-1.0*")]
