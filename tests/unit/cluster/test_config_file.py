"""A config file is checked before anything starts; errors name the path of the setting."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from ray.serve.config import HTTPOptions

from cluster.launch import ray_runtime
from cluster.launch.config_file import app_config, read_config
from cluster.launch.errors import LaunchError
from cluster.launch.key_records import with_key_records
from deployments.admission.keys import key_record
from deployments.config import AppConfig

OURS = "import_path: 'deployments.app:build'"


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Reading a config sets the environment in which Ray may be imported."""
    with patch.dict(os.environ):
        os.environ.pop("RAY_ADDRESS", None)
        yield


WRONG = {
    "an unknown key": (
        f"applications: [{{{OURS}, args: {{generater: {{}}}}}}]",
        "applications.0.args.generater: no such setting; did you mean generator?",
    ),
    "args by another name": (
        f"applications: [{{{OURS}, arg: {{}}}}]",
        "applications.0.arg: no such setting; did you mean args?",
    ),
    "applications by another name": (
        f"aplications: [{{{OURS}}}]",
        "aplications: no such setting; did you mean applications?",
    ),
    "an option of http that is none": (
        f"http_options: {{port: 8000, prt: 8001}}\napplications: [{{{OURS}}}]",
        "http_options.prt: no such setting; did you mean port?",
    ),
    "a port beyond the last": (
        f"http_options: {{host: 127.0.0.1, port: 99999}}\napplications: [{{{OURS}}}]",
        "http_options.port: Input should be less than or equal to 65535",
    ),
    "a host in brackets": (
        f"http_options: {{host: '[::1]'}}\napplications: [{{{OURS}}}]",
        "http_options.host: Value error, must be an address (IPv6 without brackets: ::1)",
    ),
    "a deployment that is none": (
        f"applications: [{{{OURS}, deployments: [{{name: SearchControler}}]}}]",
        "applications.0.deployments.0.name: SearchControler: no such deployment; did you mean SearchController?",
    ),
    "a deployment that only a store has": (
        f"applications: [{{{OURS}, deployments: [{{name: BatchRunner}}]}}]",
        "deployments.0.name: BatchRunner: no such deployment; available: Generator, ProcessRewardModel, SearchContr",
    ),
    "a deployment's option that is none": (
        f"applications: [{{{OURS}, deployments: [{{name: Generator, num_replica: 2}}]}}]",
        "applications.0.deployments.0.num_replica: no such setting; did you mean num_replicas?",
    ),
    "one of an option that is none": (
        f"applications: [{{{OURS}, deployments: [{{name: Generator, autoscaling_config: {{max_replica: 2}}}}]}}]",
        "applications.0.deployments.0.autoscaling_config.max_replica: no such setting; did you mean max_replicas?",
    ),
    "a live setting that is none": (
        f"applications: [{{{OURS}, deployments: [{{name: SearchController, user_config: {{contoller: {{}}}}}}]}}]",
        "user_config.contoller: no such setting; did you mean controller?",
    ),
    "a name that is given twice": (
        f"applications:\n- {OURS}\n  args:\n    generator: {{max_model_len: 512}}\n    prm: {{}}\n    generator: {{}}",
        "applications.0.args.generator: given twice, in line 4 and in line 6",
    ),
    "a variable": (
        f"applications: [{{{OURS}, args: {{generator: {{model: '${{MODEL}}'}}}}}}]",
        "applications.0.args.generator.model: ${MODEL}: variables are not expanded",
    ),
    "a variable without braces": (
        f"http_options: {{port: $PORT}}\napplications: [{{{OURS}}}]",
        "http_options.port: $PORT: variables are not expanded",
    ),
    "a variable within a value": (
        f"applications: [{{{OURS}, args: {{controller: {{store: {{path: '/data/${{USER}}'}}}}}}}}]",
        "applications.0.args.controller.store.path: /data/${USER}: variables are not expanded",
    ),
    "a directory that is not there": (
        f"http_options: {{host: '::1'}}\napplications: [{{{OURS}, args: {{generator: {{model: ./not-there}}}}}}]",
        "applications.0.args.generator.model: there is no model in the directory ./not-there",
    ),
    "a value out of bounds": (
        "applications: [{import_path: 'deployments.app:build', args: {controller: {limits: {n: 0}}}}]",
        "args.controller.limits.n: Input should be greater than or equal to 1",
    ),
    "a setting of another reward family": (
        "applications: [{import_path: 'deployments.app:build', args: {prm: {labels: [a, b]}}}]",
        "args.prm.labels: no such setting; available: model, dtype",
    ),
    "a number to the base 8": (
        f"applications: [{{{OURS}, args: {{generator: {{max_num_seqs: 010}}}}}}]",
        "args.generator.max_num_seqs: 010: YAML reads this as a number of base 8",
    ),
    "a number to the base 60": (
        f"applications: [{{{OURS}, args: {{controller: {{limits: {{seconds: 10:00}}}}}}}}]",
        "args.controller.limits.seconds: 10:00: YAML reads this as a number of base 60",
    ),
    "a date": (
        f"applications: [{{{OURS}, args: {{generator: {{served_name: 2026-01-31}}}}}}]",
        "args.generator.served_name: 2026-01-31: YAML reads this as a date; write it in quotes",
    ),
    "a lone =": (
        f"applications: [{{{OURS}, args: {{generator: {{step_delimiter: =}}}}}}]",
        "args.generator.step_delimiter: =: YAML does not read this as text; write it in quotes",
    ),
    "a date in a list that is none": ("a: [2026-13-45]", "a.0: 2026-13-45: YAML reads this as a date"),
    "a boolean for a number": (
        f"applications: [{{{OURS}, args: {{generator: {{write_ahead: on}}}}}}]",
        "on, yes, true, off, no and false are booleans in YAML: write a text in quotes",
    ),
    "a boolean for a port": (
        f"http_options: {{port: yes}}\napplications: [{{{OURS}}}]",
        "http_options.port: may not be a boolean",
    ),
    "a boolean for a number of replicas": (
        f"applications: [{{{OURS}, deployments: [{{name: Generator, num_replicas: yes}}]}}]",
        "applications.0.deployments.0.num_replicas: may not be a boolean",
    ),
    "a variable that is a number": (
        f"applications: [{{{OURS}, runtime_env: {{env_vars: {{HF_HUB_OFFLINE: 1}}}}}}]",
        'applications.0.runtime_env.env_vars.HF_HUB_OFFLINE: must be a text; write it in quotes: "1"',
    ),
    "variables in a list": (
        f"applications: [{{{OURS}, runtime_env: {{env_vars: [A=1]}}}}]",
        "applications.0.runtime_env.env_vars: must be a mapping",
    ),
    "no applications": ("{}", "has no applications"),
    "a list": ("[]", "has no applications"),
    "no mapping": ("applications: [1]", "applications.0 must be a mapping"),
    "no YAML": ("a: [", "not YAML"),
    "a host that is a number": (
        f"http_options: {{host: 127}}\napplications: [{{{OURS}}}]",
        'http_options.host: Input should be a valid string; write it in quotes: "127"',
    ),
    "options that are none": ("applications: [{import_path: x}]\nhttp_options: 8000", "http_options must be a mapping"),
    "options that are off": ("applications: [{import_path: x}]\nhttp_options: off", "http_options must be a mapping"),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG.keys())
def test_errors_name_the_path_of_the_setting(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(content)
    with pytest.raises(LaunchError) as refused:
        read_config(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_what_is_no_mistake_is_read(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(f"""
http_options: {{host: localhost, port: 8000}}
applications:
- {OURS}
  runtime_env: {{env_vars: {{LD_LIBRARY_PATH: "${{LD_LIBRARY_PATH}}:/opt"}}}}
  args:
    controller: {{prompt: {{system: "Write ${{x}}$."}}, store: {{path: /tmp/store}}}}
  deployments:
  - {{name: BatchRunner, ray_actor_options: {{num_cpus: 1}}}}
  - name: Generator
    autoscaling_config: &range {{min_replicas: 1, max_replicas: 2}}
  - {{name: ProcessRewardModel, autoscaling_config: {{<<: *range, max_replicas: 3}}}}
""")
    scaled = read_config(path)["applications"][0]["deployments"]
    assert scaled[2]["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 3}


def test_values_are_taken_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(f"""
http_options:
  host: 127.0.0.1
applications:
- {OURS}
  args:
    generator: {{clamp: off, write_ahead: no, kv_cache_memory_bytes: 4e9, max_model_len: 1_024, served_name: }}
    cache:
      # l1_size_gb: 1
    controller: {{limits: , searches: ~}}
  deployments:
  - name: SearchController
    user_config:
""")
    config = app_config(read_config(path))
    generator = config.generator
    assert (generator.clamp, generator.write_ahead) == ("off", "off")
    assert (generator.kv_cache_memory_bytes, generator.max_model_len) == (4_000_000_000, 1024)
    assert config == AppConfig(generator=generator)


def test_an_application_that_starts_on_a_cluster_may_have_its_models_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"applications: [{{{OURS}, args: {{http: {{allow_anonymous: true}}, prm: {{model: /elsewhere}}}}}}]"
    )
    with pytest.raises(LaunchError, match=r"args\.prm\.model: there is no model in the directory /elsewhere"):
        read_config(path)
    assert read_config(path, keys_to_come=True)["applications"]
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert read_config(path)["applications"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot read"):
        read_config(tmp_path / "missing.yaml")


def test_host_and_port_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications: [{import_path: 'other:app'}]\nhttp_options: {port: 8000, root_path: /x}")
    assert read_config(path, port=9000)["http_options"] == {"port": 9000, "root_path": "/x"}
    assert read_config(path)["http_options"] == {"port": 8000, "root_path": "/x"}


def test_without_a_file_the_defaults_are_served() -> None:
    assert read_config(None, "127.0.0.1", 1234)["applications"][0]["import_path"] == "deployments.app:build"


RECORD = f"{{digest: '{'0' * 64}', cache_salt: '{'1' * 32}'}}"
KEY = "0123456789abcdef"


@pytest.mark.parametrize("options", ["{}", "{host: 0.0.0.0}", "{host: 192.0.2.1}"])
def test_a_public_address_needs_keys_or_allow_anonymous(
    tmp_path: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BANYAN_API_KEYS", raising=False)
    path = tmp_path / "serve.yaml"

    def read(application: str) -> None:
        path.write_text(f"http_options: {options}\napplications: [{{{OURS}, {application}}}]")
        read_config(path)

    with pytest.raises(LaunchError, match=r"applications\.0: http_options.host .*allow_anonymous"):
        read("args: {}")
    with pytest.raises(LaunchError, match=r"applications\.0: http_options.host .*allow_anonymous"):
        read("deployments: [{name: SearchController, user_config: {keys: []}}]")
    read("args: {http: {allow_anonymous: true}}")
    read(f"deployments: [{{name: SearchController, user_config: {{keys: [{RECORD}]}}}}]")
    read("args: {http: {api_keys_file: /of/the/node/that/builds}}")
    monkeypatch.setenv("BANYAN_API_KEYS", KEY)
    read("args: {}")
    with pytest.raises(LaunchError, match="BANYAN_API_KEYS promises API keys"):
        read("deployments: [{name: SearchController, user_config: {keys: []}}]")


def test_without_a_file_only_loopback_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BANYAN_API_KEYS", raising=False)
    assert read_config(None)["http_options"]["host"] == "127.0.0.1"
    with pytest.raises(LaunchError, match="can be reached by other machines"):
        read_config(None, host="0.0.0.0")


TLS = {"ssl_keyfile": "/a/key.pem", "ssl_certfile": "/a/certificate.pem"}


def test_serve_gets_the_certificate(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(f"http_options: {json.dumps({'host': '127.0.0.1', **TLS})}\napplications: [{{{OURS}}}]")
    options = ray_runtime.parse(read_config(path, port=9000)).http_options
    assert (options.ssl_keyfile, options.ssl_certfile, options.port) == (*TLS.values(), 9000)
    assert HTTPOptions.model_validate(options.model_dump()).ssl_certfile == TLS["ssl_certfile"]


@pytest.mark.parametrize("name", TLS)
def test_half_a_certificate_is_refused(tmp_path: Path, name: str) -> None:
    """Serve would take a key without a certificate, and serve without TLS."""
    path = tmp_path / "serve.yaml"
    path.write_text(f"http_options: {{{name}: {TLS[name]}}}\napplications: [{{{OURS}}}]")
    with pytest.raises(LaunchError, match="TLS needs both ssl_keyfile and ssl_certfile"):
        read_config(path, host="127.0.0.1")


def test_a_misspelt_option_of_serves_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(f"http_options: {{host: 127.0.0.1, ssl_keyfil: x, ssl_certfil: y}}\napplications: [{{{OURS}}}]")
    with pytest.raises(LaunchError, match=r"http_options\.ssl_certfil: no such setting; did you mean ssl_certfile\?"):
        ray_runtime.parse(read_config(path))


def test_key_records_are_added_and_nothing_else_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BANYAN_API_KEYS", raising=False)
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    path = tmp_path / "serve.yaml"
    path.write_text(f"""
http_options: {{host: 0.0.0.0}}
applications:
- {OURS}
  args: {{http: {{api_keys_file: {keys}}}}}
  deployments:
  - {{name: Generator, num_replicas: 2}}
  - {{name: SearchController, max_ongoing_requests: 9, user_config: {{controller: {{searches: 9}}}}}}
- import_path: other:app
""")
    with pytest.raises(LaunchError, match="promises API keys"):
        read_config(path)  # they would be lost
    config = read_config(path, keys_to_come=True)
    with_records = with_key_records(config)
    ours = with_records["applications"][0]["deployments"]
    assert ours == [
        {"name": "Generator", "num_replicas": 2},
        {
            "name": "SearchController",
            "max_ongoing_requests": 9,
            "user_config": {"controller": {"searches": 9}, "keys": [key_record(KEY).model_dump(mode="json")]},
        },
    ]
    del with_records["applications"][0]["deployments"], config["applications"][0]["deployments"]
    assert with_records == config
    keys.unlink()
    with pytest.raises(LaunchError, match="cannot be read"):
        with_key_records(config)
    with pytest.raises(LaunchError, match="no keys"):
        with_key_records(read_config(None))
