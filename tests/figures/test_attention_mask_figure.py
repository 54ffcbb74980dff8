"""The mask of Figure 8, from the executor's own code, against its definition."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the mask is the executor's, which needs torch")

from figures import attention_mask
from figures.inputs import Results

pytestmark = pytest.mark.serial

K, F, PREFIX = 3, 4, 8


@pytest.mark.parametrize("step", [0, 2])
def test_a_branch_sees_its_trunk_and_its_own_chain(step: int) -> None:
    mask = attention_mask.branch_mask(step)
    trunk, branches = PREFIX + 1 + K, F * (K + 1)
    expected = np.zeros((branches, trunk + branches * (step + 1)), dtype=bool)
    for branch in range(branches):
        num_accepted = branch // F
        expected[branch, : PREFIX + 1 + num_accepted] = True  # the prefix, the bonus token, the accepted ones
        expected[branch, trunk + branch :: branches] = True  # its own token of every step so far
    np.testing.assert_array_equal(mask.visible, expected)


def test_the_picture_and_its_data_are_that_mask() -> None:
    drawing = attention_mask.draw(Results())
    words = [row.visible for row in drawing.data]  # type: ignore[attr-defined]
    mask = attention_mask.branch_mask()
    assert words == ["".join("01"[seen] for seen in row) for row in mask.visible.astype(int)]
    (squares,) = drawing.figure.axes[0].collections
    np.testing.assert_array_equal(np.asarray(squares.get_array()).reshape(mask.visible.shape) > 0, mask.visible)
