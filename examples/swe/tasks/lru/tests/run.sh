node --test --test-reporter=tap tests/*.test.mjs
