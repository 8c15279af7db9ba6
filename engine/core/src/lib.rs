//! Bgrp: the engine that runs keyed tasks.
