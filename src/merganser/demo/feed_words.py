"""The words of made-up job postings, which `words.toml` lists."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """A country as its postings show it; `median_salary` is a middling year's salary in its currency."""

    code: str
    currency: str
    median_salary: int
    zone: str
    cities: list[str]
    names: list[str]
    industries: list[str]
    legal_form: str
    titles: list[str]


WORDS = tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))
COUNTRIES = tuple(Country(**country) for country in WORDS["country"])
