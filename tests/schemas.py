"""The schema of the small tables that commands and workflows are tried on."""

SCHEMA = """
[target]
column = "sick"
classes = ["no", "yes"]

[columns.age]
kind = "number"
low = 0
high = 100

[columns.ward]
kind = "category"
values = ["a", "b"]
"""
