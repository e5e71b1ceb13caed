"""A small shop that shows what Postbus does: `postbus up --demo`.

An order service publishes within its own transactions, some of which it rolls back. Worker processes
consume: orders, payments in the order of each customer, e-mails after a delay. Some payments fail and are
tried again, some messages can never be handled and become dead letters. What happens to orders is published
to three groups as well, each of which gets all of it at its own pace.
"""
