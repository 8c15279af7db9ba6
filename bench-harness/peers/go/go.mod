module bgrp-bench-go

go 1.18
