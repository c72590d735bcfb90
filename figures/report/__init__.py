"""A campaign as one HTML page that needs nothing else: `python -m hsexp report campaign=q6`.

    ledger -> facts, tables, decisions, figures -> Jinja -> <ledger>/report.html

The page lists no table and no figure of its own: it shows those that conf/analysis names for the
campaign, and the settings of any other ledger.
"""
