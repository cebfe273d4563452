"""WHAT IS THERE TO SEE: one file per chart, drawn from a judged run; found by being here."""
