module example.org/toposort

go 1.19
