/** What a job has sent so far: one that goes back to a checkpoint counts from there again, this does not. */

export class Sent {
  constructor() {
    this.total = 0;
    this.told = null;
  }

  /** Begin where the history ends: with what the service counted, and what the job told last. */
  begin(total, up, down) {
    this.total = Math.max(this.total, total);
    if (up !== null && up !== undefined) this.told = up + (down ?? 0);
  }

  take(data) {
    if (!("comm/bytes_up" in data)) return this.total;
    const told = (data["comm/bytes_up"] ?? 0) + (data["comm/bytes_down"] ?? 0);
    this.total += Math.max(0, told - (this.told ?? this.total));
    this.told = told;
    return this.total;
  }
}
