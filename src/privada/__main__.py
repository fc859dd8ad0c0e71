"""`python -m privada` is `privada`."""

from privada.cli import main

main()
