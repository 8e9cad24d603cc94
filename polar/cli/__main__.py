"""`python -m polar.cli`: how `polar up` starts its parts."""

from polar.cli.app import main

main()
