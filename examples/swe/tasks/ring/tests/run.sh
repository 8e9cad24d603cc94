make -s -f tests/check.mk check
