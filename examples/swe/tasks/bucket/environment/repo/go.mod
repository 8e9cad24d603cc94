module example.org/bucket

go 1.19
