"""The only way to private records: the account that pays, and one file for each kind of look."""
