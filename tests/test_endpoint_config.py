"""workup.yaml: where it is found, what it may hold, and that it never holds a key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.core.errors import UserError
from workup.roles.config import Config, refuse_secrets
from workup.roles.endpoint import EndpointSettings
from workup.runs import settings

KEY = "sk-proj-8fJ2mQ7xLw0Zr4Tn"
GOOD = {
    "endpoints": {
        "judge": {"base_url": "http://localhost:8000/v1", "model": "qwen", "price": {"input": 0.5}},
        "patient": {
            "base_url": "https://api.example.com/v1/",
            "model": "m",
            "api_key_env": "EXAMPLE_KEY",
            "trusted": True,
        },
    },
    "roles": {"judge": "endpoint:judge"},
    "budget": 5,
}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory and an empty config folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def write(file: Path, values: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(values if isinstance(values, str) else json.dumps(values))  # JSON is YAML
    return file


def refused(file: Path) -> str:
    with pytest.raises(UserError) as caught:
        Config.find(file)
    said = str(caught.value)
    assert "\n" not in said
    assert str(file) in said
    return said


def test_a_good_file_reads_as_it_is_written(home: Path) -> None:
    config = Config.find(write(home / "my.yaml", GOOD))
    assert config.endpoint("judge") == EndpointSettings(
        base_url="http://localhost:8000/v1", model="qwen", price={"input": 0.5, "output": 0}
    )
    assert config.endpoint("patient").base_url == "https://api.example.com/v1"
    assert config.endpoint("patient").trusted
    assert not config.endpoint("judge").trusted
    assert (config.roles, config.budget) == ({"judge": "endpoint:judge"}, 5.0)


def test_the_first_of_three_places_is_read_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Config.find() == Config()
    write(home / "config/workup/workup.yaml", {"budget": 1})
    assert Config.find().budget == 1
    write(home / "here/workup.yaml", {"roles": {"judge": "exact"}})
    assert Config.find().model_dump() == Config(roles={"judge": "exact"}).model_dump()
    assert Config.find(write(home / "third.yaml", {"budget": 3})).budget == 3
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(home))
    (home / "here/workup.yaml").unlink()
    write(home / ".config/workup/workup.yaml", {"budget": 4})
    assert Config.find().budget == 4


def test_a_budget_of_null_lifts_that_of_the_file(home: Path) -> None:
    write(home / "here/workup.yaml", {"budget": 4})
    for words, budget in ((), 4), (("budget=null",), None), (("budget=1",), 1):
        values = {**settings.read(words), "policy": "x", "cases": "y"}
        assert settings.with_user_config(settings.PolicySettings, values).budget == budget
    with pytest.raises(UserError, match="field 'budget': input should be a finite number"):
        Config.find(write(home / "endless.yaml", "budget: .inf"))


def test_a_word_changes_one_setting_of_an_endpoint_and_an_address_makes_another(
    home: Path,
) -> None:
    """The file's key goes to the file's address alone."""
    write(home / "here/workup.yaml", GOOD)
    given = {"policy": "endpoint:judge", "cases": "y"}

    def endpoint(*words: str) -> EndpointSettings:
        values = {**settings.read(words), **given}
        return settings.with_user_config(settings.PolicySettings, values).endpoints["judge"]

    known = Config.find().endpoint("judge")
    assert endpoint("endpoints.judge.retries=7") == known.model_copy(update={"retries": 7})
    priced = endpoint("endpoints.judge.price.input=2").price
    assert known.price is not None
    assert priced == known.price.model_copy(update={"input": 2})
    other = endpoint("endpoints.judge.base_url=http://x:1/v1", "endpoints.judge.model=m")
    assert other == EndpointSettings(base_url="http://x:1/v1", model="m")
    with pytest.raises(UserError, match=r"Did you mean 'endpoints\.judge\.model'"):
        endpoint("endpoints.judge.modle=m")


def test_a_sampler_that_is_none_is_refused_where_an_endpoint_needs_none(home: Path) -> None:
    write(home / "here/workup.yaml", GOOD)
    values = {"policy": "endpoint:judge", "cases": "y", "sampler": "vlm"}
    with pytest.raises(UserError, match=r"no sampler 'vlm'\. Did you mean 'vllm'"):
        settings.with_user_config(settings.PolicySettings, values)


def test_an_empty_file_is_an_empty_configuration(home: Path) -> None:
    assert (
        Config.find(write(home / "empty.yaml", "# nothing yet\n")).model_dump()
        == Config().model_dump()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoint: {}", "no field 'endpoint'. Did you mean 'endpoints'?"),
        (
            "endpoints: {j: {base_url: 'http://x/v1', modle: m, model: n}}",
            "Did you mean 'endpoints.j.model'?",
        ),
        (
            "endpoints: {j: {base_url: 'http://x/v1', model: m, price: {inptu: 1}}}",
            "Did you mean 'endpoints.j.price.input'?",
        ),
        ("endpoints: {j: {model: m}}", "field 'endpoints.j.base_url': field required"),
        (
            "endpoints: {j: {base_url: x.example, model: m}}",
            "field 'endpoints.j.base_url': no http:// or https:// address",
        ),
        (
            "endpoints: {j: {base_url: 'http://x/v1', model: m, timeout: -1}}",
            "'endpoints.j.timeout': input should be greater",
        ),
        (
            "endpoints: {j: {base_url: 'http://x/v1', model: m, structured: xml}}",
            "'json_schema', 'json_object' or 'none'",
        ),
        ("endpoints: [1]", "field 'endpoints': input should be a valid dictionary"),
        ("budget: -2", "field 'budget': input should be greater than or equal to 0, not -2"),
        ("- 1\n- 2", "holds no mapping"),
        ("a: [1, 2\nb: 3", "not readable as YAML"),
        ("roles: {judge: [", "not readable as YAML"),
    ],
)
def test_a_mistake_is_said_in_one_line_with_its_place(text: str, said: str, home: Path) -> None:
    assert said in refused(write(home / "bad.yaml", text))


def test_files_that_are_none(home: Path) -> None:
    assert "no such file" in refused(home / "missing.yaml")
    assert "is a folder; name a YAML file in it" in refused(home / "here")
    (home / "here/workup.yaml").mkdir()
    with pytest.raises(UserError, match=r"^workup\.yaml is a folder"):
        Config.find()
    (home / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    refused(home / "binary.yaml")
    assert "larger than" in refused(write(home / "large.yaml", "# " + "x" * 1_000_000))


def test_parameters_that_sound_like_keys_are_none(home: Path) -> None:
    given = {"prompt_cache_key": "my-study-of-2026", "eos_token": "<|im_end|>", "max_tokens": 9}
    assert Config.find(write(home / "good.yaml", with_endpoint(parameters=given)))


def with_endpoint(**more: Any) -> dict[str, Any]:
    return {"endpoints": {"judge": {"base_url": "http://x.example/v1", "model": "m", **more}}}


@pytest.mark.parametrize(
    ("values", "place"),
    [
        (with_endpoint(api_key=KEY), "endpoints.judge.api_key"),
        (with_endpoint(api_key="anything"), "endpoints.judge.api_key"),
        (with_endpoint(api_key_env=KEY), "endpoints.judge.api_key_env"),
        (with_endpoint(model=KEY), "endpoints.judge.model"),
        (
            with_endpoint(parameters={"extra": [{"authorization": "x"}]}),
            "endpoints.judge.parameters.extra.0.authorization",
        ),
        (
            with_endpoint(parameters={"headers": f"Bearer {KEY}"}),
            "endpoints.judge.parameters.headers",
        ),
        (with_endpoint(base_url=f"http://x.example/v1?k={KEY}"), "endpoints.judge.base_url"),
        (
            with_endpoint(parameters={"access_token": "9f8e7d6c5b4a"}),
            "endpoints.judge.parameters.access_token",
        ),
        (
            with_endpoint(parameters={"extra_body": {"x-api-key": "9f8e7d6c5b4a"}}),
            "endpoints.judge.parameters.extra_body.x-api-key",
        ),
        (
            with_endpoint(parameters={"extra": "github_pat_11AAAAAAA0abcdefghijk"}),
            "endpoints.judge.parameters.extra",
        ),
        ({"roles": {"judge": KEY}}, "roles.judge"),
        ({"key": "1"}, "key"),
        ({"endpoints": {KEY: {}}}, "endpoints"),
    ],
)
def test_a_key_is_refused_with_its_place_and_without_its_text(
    values: dict[str, Any], place: str, home: Path
) -> None:
    said = refused(write(home / "bad.yaml", values))
    assert f"field '{place}'" in said
    assert "api_key_env: NAME_OF_THE_VARIABLE" in said
    assert KEY not in said


def test_broken_yaml_is_not_quoted(home: Path) -> None:
    said = refused(write(home / "bad.yaml", f"endpoints:\n  judge:\n    api_key: '{KEY}\n"))
    assert KEY not in said


@pytest.mark.parametrize(
    "text", ["${oc.env:SECRET_OF_MINE}", "x-${oc.env:SECRET_OF_MINE,default}", "${budget}"]
)
def test_no_variable_s_value_is_pasted_in(
    text: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "the secret itself")
    said = refused(write(home / "bad.yaml", with_endpoint(model=text)))
    assert "field 'endpoints.judge.model'" in said
    assert "the secret itself" not in said


@given(
    st.sampled_from(["sk", "hf", "gsk", "xai"]),
    st.sampled_from("-_"),
    st.from_regex(r"[A-Za-z]{8}[0-9][\w-]{8,40}", fullmatch=True),
)
def test_a_key_is_known_wherever_it_stands(prefix: str, dash: str, rest: str) -> None:
    for text in (f"{prefix}{dash}{rest}", f"key={prefix}{dash}{rest} "):
        with pytest.raises(UserError):
            refuse_secrets({"a": [{"b": text}]}, Path("f.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "hf-internal-testing/tiny-random-LlamaForCausalLM",
        "Qwen/Qwen3-4B-Instruct-2507",
        "deepseek-r1-0528",
        "sk-learn",
    ],
)
def test_models_names_are_no_keys(text: str) -> None:
    refuse_secrets(
        with_endpoint(model=text, max_tokens_name="max_tokens", parameters={"stop_token_ids": [1]}),
        Path("f.yaml"),
    )


def test_an_endpoint_that_is_not_defined_gets_the_nearest_one_and_the_place(home: Path) -> None:
    file = write(home / "my.yaml", GOOD)
    config = Config.find(file)
    with pytest.raises(UserError) as caught:
        config.endpoint("jugde")
    assert str(caught.value) == f"no endpoint 'jugde'. Did you mean 'judge'? (defined in {file})"
    with pytest.raises(
        UserError, match=r"none is defined; name it under `endpoints:` in workup\.yaml"
    ):
        Config().endpoint("judge")


def test_a_misspelt_field_is_told_before_the_one_that_is_missing_for_it(home: Path) -> None:
    values = {"endpoints": {"judge": {"base_ur": "http://x.example/v1", "model": "m"}}}
    assert "Did you mean 'endpoints.judge.base_url'?" in refused(write(home / "bad.yaml", values))
