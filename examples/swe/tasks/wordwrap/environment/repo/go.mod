module example.org/wordwrap

go 1.19
