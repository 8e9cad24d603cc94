"""`python -m polar.cli`: how `polar up` starts its parts."""

from polar.cli import main

main()
