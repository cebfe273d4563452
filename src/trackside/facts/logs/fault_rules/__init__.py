"""The table behind :mod:`trackside.facts.logs.fault_class`: which sentences, types and places speak of which class.

Order counts: the first rule that fits wins. Rules that know a sentence come before those that know only a type, and
those before the ones that know only where the exception was raised. One row a cause.
"""

from __future__ import annotations

from trackside.facts.logs.fault_rules import assets, code, config, data, environment
from trackside.facts.logs.fault_rules.rule import Rule

RULES: tuple[Rule, ...] = (*environment.RULES, *assets.RULES, *data.RULES, *config.RULES, *code.RULES)
