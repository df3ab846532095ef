"""What a user relies on, seen from outside: SearchEngine, Encoder, the command line and HTTP.

`figures.json` has every recorded figure with its noise. A figure changes only on purpose:

    RECORD_FIGURES=1 python -m pytest -n 0 tests/public

writes the figures of the code as it is; the commit says why they changed.
"""
