"""Statistics and tables from a ledger: `python -m analysis campaign=q6`.

Data flows one way: ledger -> runs -> effects, tests, intervals -> tables. Nothing here runs a cell.
"""
